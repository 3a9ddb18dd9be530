// SPDX-License-Identifier: Apache-2.0
#include "homes.h"

#include <stdlib.h>

#include "bits.h"

/* Maximum number of blocks that one search for adjacent free frames compares. */
#define COMPARED_BLOCKS 8u

bool homes_init(struct homes *homes, uint32_t huge_count, uint32_t single_count)
{
	homes->huge_count = huge_count;
	homes->empty = huge_count;
	homes->count = huge_count + single_count;
	homes->lender_words = (homes->count + 63) / 64;
	homes->blocks = calloc(homes->count, sizeof(*homes->blocks));
	homes->lenders = calloc(homes->lender_words, sizeof(*homes->lenders));
	return homes->blocks && homes->lenders;
}

void homes_destroy(struct homes *homes)
{
	free(homes->blocks);
	free(homes->lenders);
	homes->blocks = NULL;
	homes->lenders = NULL;
}

static uint32_t home_at(uint32_t block, uint32_t page)
{
	return block * BLOCK_PAGES + page + 1;
}

static struct block *block_of(const struct homes *homes, uint32_t home)
{
	return &homes->blocks[(home - 1) / BLOCK_PAGES];
}

bool home_is_single(const struct homes *homes, uint32_t home)
{
	return (home - 1) / BLOCK_PAGES >= homes->huge_count;
}

uint32_t homes_in_block(uint32_t home, uint32_t pages)
{
	uint32_t left = BLOCK_PAGES - (home - 1) % BLOCK_PAGES;

	return pages < left ? pages : left;
}

void homes_use(struct homes *homes, uint32_t home, uint32_t pages, bool used)
{
	struct block *block = block_of(homes, home);

	bits_set(block->used, (home - 1) % BLOCK_PAGES, pages, used);
	block->frames += used ? pages : -pages;
	if (home_is_single(homes, home))
		return;
	if (used && block->frames == pages)
		homes->empty--;
	else if (!block->frames)
		homes->empty++;
}

void homes_set_free(struct homes *homes, uint32_t home, uint32_t pages, bool free)
{
	struct block *block = block_of(homes, home);

	bits_set(block->free, (home - 1) % BLOCK_PAGES, pages, free);
	block->free_frames += free ? pages : -pages;
	bits_set(homes->lenders, (home - 1) / BLOCK_PAGES, 1, block->free_frames);
	homes->free_pages += free ? pages : -(uint64_t)pages;
}

uint32_t homes_find_unused(const struct homes *homes, uint32_t pages, uint32_t *home)
{
	uint32_t best = 0;

	for (uint32_t i = homes->huge_count; i < homes->count && best < pages; i++) {
		uint64_t unused[BLOCK_WORDS];
		uint32_t first, run;

		if (BLOCK_PAGES - homes->blocks[i].frames <= best)
			continue;
		for (uint32_t word = 0; word < BLOCK_WORDS; word++)
			unused[word] = ~homes->blocks[i].used[word];
		run = bits_best_run(unused, BLOCK_WORDS, pages, &first);
		if (run > best) {
			best = run;
			*home = home_at(i, first);
		}
	}
	return best < pages ? best : pages;
}

/* Consecutive free frames of one block. */
struct run {
	uint32_t home;
	uint32_t pages;
	uint32_t compared; /* number of blocks searched so far, none of which had a long enough run */
};

static uint32_t next_lender(const struct homes *homes, uint32_t block)
{
	return bits_next(homes->lenders, homes->lender_words, block, true);
}

/* Search the blocks [block, end) for a run that suits `pages` pages better than *best does (see
   bits_better()), and store it in *best. Returns whether no further block has to be searched. */
static bool search(const struct homes *homes, uint32_t block, uint32_t end, uint32_t pages, struct run *best)
{
	for (block = next_lender(homes, block); block < end; block = next_lender(homes, block + 1)) {
		uint32_t first, run;

		/* Skip a block that cannot have a better run: *best is too short, and the block has
		   no more free frames than *best has pages. */
		if (best->pages < pages && homes->blocks[block].free_frames <= best->pages)
			continue;
		run = bits_best_run(homes->blocks[block].free, BLOCK_WORDS, pages, &first);
		if (bits_better(run, best->pages, pages)) {
			best->pages = run;
			best->home = home_at(block, first);
		}
		if (best->pages >= pages || ++best->compared == COMPARED_BLOCKS)
			return true;
	}
	return false;
}

uint32_t homes_find_free(struct homes *homes, uint32_t pages, uint32_t *home)
{
	struct run best = {0};

	if (!search(homes, homes->hand, homes->huge_count, pages, &best))
		search(homes, 0, homes->hand, pages, &best);
	if (best.pages)
		homes->hand = (best.home - 1) / BLOCK_PAGES;
	else
		search(homes, homes->huge_count, homes->count, pages, &best);
	*home = best.home;
	return best.pages < pages ? best.pages : pages;
}

uint32_t homes_find_least(const struct homes *homes, uint32_t pages, uint32_t *home)
{
	uint32_t found = homes->count, first, run;

	for (uint32_t i = next_lender(homes, 0); i < homes->count; i = next_lender(homes, i + 1))
		if (found == homes->count || i >= homes->huge_count ||
		    homes->blocks[i].frames < homes->blocks[found].frames)
			found = i;
	run = bits_best_run(homes->blocks[found].free, BLOCK_WORDS, pages, &first);
	*home = home_at(found, first);
	return run < pages ? run : pages;
}

uint32_t homes_find_rest(const struct homes *homes, uint32_t *home)
{
	uint32_t block = next_lender(homes, (*home - 1) / BLOCK_PAGES), first, run;

	while (block < homes->huge_count && homes->blocks[block].frames == BLOCK_PAGES)
		block = next_lender(homes, block + 1);
	if (block >= homes->huge_count)
		return 0;
	run = bits_best_run(homes->blocks[block].free, BLOCK_WORDS, BLOCK_PAGES, &first);
	*home = home_at(block, first);
	return run;
}

uint32_t homes_find_block(struct homes *homes)
{
	uint32_t block;

	if (!homes->empty)
		return HOME_NONE;
	do {
		block = homes->next;
		homes->next = (block + 1) % homes->huge_count;
	} while (homes->blocks[block].frames);
	return home_at(block, 0);
}
