// SPDX-License-Identifier: Apache-2.0
#include "filespace.h"

#include <stdlib.h>
#include <string.h>

#define WORD_BITS 64u

static bool is_used(const struct filespace *space, uint64_t page)
{
	return space->used[page / WORD_BITS] >> (page % WORD_BITS) & 1;
}

static void set_used(struct filespace *space, uint64_t page)
{
	space->used[page / WORD_BITS] |= 1ull << (page % WORD_BITS);
}

bool filespace_init(struct filespace *space, uint64_t pages)
{
	*space = (struct filespace){.pages = pages, .free_pages = pages ? pages - 1 : 0, .next = 1};
	space->used = calloc(pages / WORD_BITS + 1, sizeof(*space->used));
	if (!space->used)
		return false;
	/* Mark the bits after the last page as used, so that no search returns a page beyond the
	   end of the file. */
	for (uint64_t page = pages; page < (pages / WORD_BITS + 1) * WORD_BITS; page++)
		set_used(space, page);
	set_used(space, 0);
	return true;
}

/* Enlarge a bitmap from `before` to `words` words; the new bytes are `fill`. */
static bool enlarge(uint64_t **bits, uint64_t before, uint64_t words, int fill)
{
	uint64_t *larger = realloc(*bits, words * sizeof(**bits));

	if (!larger)
		return false;
	memset(larger + before, fill, (words - before) * sizeof(*larger));
	*bits = larger;
	return true;
}

bool filespace_grow(struct filespace *space, uint64_t pages)
{
	uint64_t before = space->pages / WORD_BITS + 1, words = pages / WORD_BITS + 1;

	if (pages <= space->pages)
		return true;
	if (!enlarge(&space->used, before, words, 0xff))
		return false;
	if (space->held &&
	    (!enlarge(&space->held, before, words, 0) || !enlarge(&space->released, before, words, 0)))
		return false;
	for (struct filespace_hold *hold = space->holds; hold; hold = hold->next)
		if (!enlarge(&hold->pages, before, words, 0))
			return false;
	for (uint64_t page = space->pages; page < pages; page++)
		space->used[page / WORD_BITS] &= ~(1ull << (page % WORD_BITS));
	space->free_pages += pages - space->pages;
	space->pages = pages;
	return true;
}

static void drop_maps(struct filespace *space)
{
	free(space->held);
	free(space->released);
	space->held = space->released = NULL;
}

/* Remove a hold from the list that *link is a part of. */
static void remove_hold(struct filespace_hold **link)
{
	struct filespace_hold *hold = *link;

	*link = hold->next;
	free(hold->pages);
	free(hold);
}

void filespace_destroy(struct filespace *space)
{
	while (space->holds)
		remove_hold(&space->holds);
	drop_maps(space);
	free(space->used);
	*space = (struct filespace){0};
}

/* The first free page in [from, to), or `to` if there is none. */
static uint64_t first_free(const struct filespace *space, uint64_t from, uint64_t to)
{
	while (from < to) {
		uint64_t word = ~space->used[from / WORD_BITS] >> (from % WORD_BITS);

		if (word) {
			from += (uint64_t)__builtin_ctzll(word);
			return from < to ? from : to;
		}
		from = (from / WORD_BITS + 1) * WORD_BITS;
	}
	return to;
}

uint64_t filespace_available(const struct filespace *space)
{
	/* If a holder has no hold, because there was no memory for it, nothing records which free
	   pages this holder may still read. So give out no page. */
	return space->closed ? 0 : space->free_pages;
}

uint64_t filespace_take(struct filespace *space, uint64_t pages, uint64_t *first)
{
	uint64_t page, count = 0;

	if (!filespace_available(space) || !pages)
		return 0;
	page = first_free(space, space->next, space->pages);
	if (page == space->pages)
		page = first_free(space, 1, space->next);
	*first = page;
	while (count < pages && page < space->pages && !is_used(space, page)) {
		set_used(space, page++);
		count++;
	}
	space->free_pages -= count;
	space->next = page < space->pages ? page : 1;
	return count;
}

void filespace_give(struct filespace *space, uint64_t first, uint64_t pages)
{
	for (uint64_t page = first; page < first + pages; page++) {
		uint64_t word = page / WORD_BITS, bit = 1ull << (page % WORD_BITS);

		if (space->held && space->held[word] & bit) {
			space->released[word] |= bit;
			continue;
		}
		space->used[word] &= ~bit;
		space->free_pages++;
	}
}

/* The link to the holder's hold; a link to NULL if the holder has none. */
static struct filespace_hold **find_hold(struct filespace *space, uint64_t holder)
{
	struct filespace_hold **link = &space->holds;

	while (*link && (*link)->holder != holder)
		link = &(*link)->next;
	return link;
}

static bool make_maps(struct filespace *space, uint64_t words)
{
	if (space->held)
		return true;
	space->held = calloc(words, sizeof(*space->held));
	space->released = calloc(words, sizeof(*space->released));
	if (space->held && space->released)
		return true;
	drop_maps(space);
	return false;
}

static struct filespace_hold *make_hold(uint64_t holder, uint64_t words)
{
	struct filespace_hold *hold = calloc(1, sizeof(*hold));

	if (!hold)
		return NULL;
	hold->holder = holder;
	hold->pages = calloc(words, sizeof(*hold->pages));
	if (hold->pages)
		return hold;
	free(hold);
	return NULL;
}

void filespace_hold(struct filespace *space, uint64_t holder)
{
	uint64_t words = space->pages / WORD_BITS + 1;
	struct filespace_hold **link = find_hold(space, holder), *hold;

	if (!*link && make_maps(space, words))
		*link = make_hold(holder, words);
	hold = *link;
	if (!hold) {
		space->closed++;
		return;
	}
	for (uint64_t word = 0; word < words; word++)
		hold->pages[word] |= space->used[word] & ~space->released[word];
	/* Do not hold pages after the last page: their bits in `used` are set until the file grows. */
	hold->pages[words - 1] &= (1ull << space->pages % WORD_BITS) - 1;
	for (uint64_t word = 0; word < words; word++)
		space->held[word] |= hold->pages[word];
}

/* Free the pages that were given back and that no hold includes. */
static void free_released(struct filespace *space)
{
	uint64_t words = space->pages / WORD_BITS + 1;

	for (uint64_t word = 0; word < words; word++) {
		uint64_t held = 0, freed;

		for (const struct filespace_hold *hold = space->holds; hold; hold = hold->next)
			held |= hold->pages[word];
		freed = space->released[word] & ~held;
		space->held[word] = held;
		space->released[word] &= held;
		space->used[word] &= ~freed;
		space->free_pages += (uint64_t)__builtin_popcountll(freed);
	}
}

void filespace_release(struct filespace *space, uint64_t holder)
{
	struct filespace_hold **link = find_hold(space, holder);

	if (!*link) {
		space->closed--;
		return;
	}
	remove_hold(link);
	free_released(space);
	if (!space->holds)
		drop_maps(space);
}
