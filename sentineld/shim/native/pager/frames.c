// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "frames.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bits.h"
#include "pagemap.h"
#include "uffd.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* Limit for large or unlimited budgets: 128 GiB. Frames beyond it are single. */
#define HUGE_BLOCKS_MAX (1u << 16)

/* More blocks than the budget needs, because single frames that were returned to the kernel leave
   blocks incomplete. */
#define SPARE_BLOCKS 64u

/* All transits together can have 128 x 256 single frames; the other homes are for free ones. */
#define SINGLE_BLOCKS 80u

/* Number of single frames that the nursery holds. */
#define NURSERY_PAGES 256u

/* Number of blocks with free frames that are searched for adjacent ones. */
#define COMPARED_BLOCKS 8u

static uint64_t bytes_of(const struct frames *frames, uint64_t pages)
{
	return pages << frames->page_shift;
}

/* Map the staging memory and the nurseries. Returns whether this worked. */
static bool map(struct frames *frames)
{
	uint64_t huge = bytes_of(frames, BLOCK_PAGES), staging = frames->count * huge;
	char *base;

	/* One huge page more than needed, to align the addresses. */
	frames->bytes = huge + staging + bytes_of(frames, NURSERY_PAGES) + huge;
	base = mmap(NULL, frames->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		    -1, 0);
	if (base == MAP_FAILED)
		return false;
	frames->memory = base;
	frames->huge_nursery = base + (-(uintptr_t)base & (huge - 1));
	frames->staging = frames->huge_nursery + huge;
	frames->nursery = frames->staging + staging;
	/* A frame that a child process shares could not be moved. */
	madvise(base, frames->bytes, MADV_DONTFORK);
	madvise(base, frames->bytes, MADV_NOHUGEPAGE);
	return true;
}

const char *frames_init(struct frames *frames, uint64_t pages)
{
	uint64_t blocks = pages / BLOCK_PAGES + SPARE_BLOCKS;

	frames->huge_count = blocks < HUGE_BLOCKS_MAX ? (uint32_t)blocks : HUGE_BLOCKS_MAX;
	frames->count = frames->huge_count + SINGLE_BLOCKS;
	/* Address space can be limited (RLIMIT_AS, vm.overcommit_memory). Fewer blocks work as well. */
	while (!map(frames) && frames->huge_count > SPARE_BLOCKS) {
		frames->huge_count /= 2;
		frames->count = frames->huge_count + SINGLE_BLOCKS;
	}
	frames->blocks = calloc(frames->count, sizeof(*frames->blocks));
	frames->lender_words = (frames->count + 63) / 64;
	frames->lenders = calloc(frames->lender_words, sizeof(*frames->lenders));
	if (!frames->memory || !frames->blocks || !frames->lenders) {
		frames_destroy(frames);
		return "no memory for the staging area";
	}
	if (uffd_register(frames->uffd, frames->staging,
			  bytes_of(frames, (uint64_t)frames->count * BLOCK_PAGES))) {
		frames_destroy(frames);
		return "the staging area cannot be registered with userfaultfd";
	}
	return NULL;
}

void frames_destroy(struct frames *frames)
{
	if (frames->memory)
		munmap(frames->memory, frames->bytes);
	free(frames->blocks);
	free(frames->lenders);
	frames->memory = NULL;
	frames->blocks = NULL;
	frames->lenders = NULL;
}

static uint32_t home_at(uint32_t block, uint32_t page)
{
	return block * BLOCK_PAGES + page + 1;
}

static struct block *block_of(struct frames *frames, uint32_t home)
{
	return &frames->blocks[(home - 1) / BLOCK_PAGES];
}

static bool is_single(const struct frames *frames, uint32_t home)
{
	return (home - 1) / BLOCK_PAGES >= frames->huge_count;
}

/* How many of the `pages` consecutive homes from `home` on are in the first one's block. */
static uint32_t in_block(uint32_t home, uint32_t pages)
{
	uint32_t left = BLOCK_PAGES - (home - 1) % BLOCK_PAGES;

	return pages < left ? pages : left;
}

/* The functions below take consecutive homes of one block. */

static void use(struct frames *frames, uint32_t home, uint32_t pages)
{
	struct block *block = block_of(frames, home);

	bits_set(block->used, (home - 1) % BLOCK_PAGES, pages, true);
	block->frames += pages;
}

static void unuse(struct frames *frames, uint32_t home, uint32_t pages)
{
	struct block *block = block_of(frames, home);

	bits_set(block->used, (home - 1) % BLOCK_PAGES, pages, false);
	block->frames -= pages;
}

static void set_free(struct frames *frames, uint32_t home, uint32_t pages, bool free)
{
	struct block *block = block_of(frames, home);

	bits_set(block->free, (home - 1) % BLOCK_PAGES, pages, free);
	block->free_frames += free ? pages : -pages;
	bits_set(frames->lenders, (home - 1) / BLOCK_PAGES, 1, block->free_frames);
	frames->free_pages += free ? pages : -(uint64_t)pages;
}

/* Return frames that are at home and not free to the kernel. */
static void discard(struct frames *frames, uint32_t home, uint32_t pages)
{
	madvise(frames_address(frames, home), bytes_of(frames, pages), MADV_DONTNEED);
	unuse(frames, home, pages);
	frames->pages -= pages;
}

/* Number of consecutive pages, from the first one on, that exist at `to` and not at `from`. */
static uint32_t arrived(const struct frames *frames, const void *to, const void *from, uint32_t pages)
{
	bool there[PAGEMAP_BATCH], here[PAGEMAP_BATCH];
	int64_t known = pagemap_read(frames->pagemap, to, frames->page_shift, pages, there);
	uint32_t count = 0;

	if (known <= 0 ||
	    pagemap_read(frames->pagemap, from, frames->page_shift, (uint64_t)known, here) != known)
		return 0;
	while (count < known && there[count] && !here[count])
		count++;
	return count;
}

/*
 * Move frames as uffd_move() does; returns the number of pages.
 *
 * Linux 6.18 can move pages without counting them. If reclaim or migration holds a page, an attempt
 * to move it fails with EAGAIN, and move_pages() in mm/userfaultfd.c tries again. But move_pages()
 * keeps the error of the failed attempt, because it moves pages in batches. So it does not count
 * the pages that the next attempt moves, and the attempt after that fails with EEXIST.
 */
static uint32_t move(struct frames *frames, char *to, char *from, uint32_t pages, int *error)
{
	uint32_t done = 0, uncounted;

	for (;;) {
		uint64_t at = (uint64_t)done << frames->page_shift;
		uint64_t moved = uffd_move(frames->uffd, to + at, from + at,
					   (uint64_t)(pages - done) << frames->page_shift, error);

		done += (uint32_t)(moved >> frames->page_shift);
		if (done == pages || *error != EEXIST)
			return done;
		uncounted = arrived(frames, to + at + moved, from + at + moved, pages - done);
		if (!uncounted)
			return done;
		/* The kernel has woken only the threads that wait for counted pages. */
		uffd_wake(frames->uffd, to + at + moved, (uint64_t)uncounted << frames->page_shift);
		done += uncounted;
		*error = 0;
	}
}

/* Find homes for single frames: consecutive ones for all pages or, if there are none, the most. Returns
   how many; 0: no home is left. */
static uint32_t find_homes(const struct frames *frames, uint32_t pages, uint32_t *home)
{
	uint32_t best = 0;

	for (uint32_t i = frames->huge_count; i < frames->count && best < pages; i++) {
		uint64_t unused[BLOCK_WORDS];
		uint32_t first, run;

		if (BLOCK_PAGES - frames->blocks[i].frames <= best)
			continue;
		for (uint32_t word = 0; word < BLOCK_WORDS; word++)
			unused[word] = ~frames->blocks[i].used[word];
		run = bits_best_run(unused, BLOCK_WORDS, pages, &first);
		if (run > best) {
			best = run;
			*home = home_at(i, first);
		}
	}
	return best < pages ? best : pages;
}

/* Number of pages, from the first of `pages` pages on, that have single frames. */
static uint32_t single_run(const uint32_t *homes, uint32_t pages)
{
	uint32_t run = 0;

	while (run < pages && homes[run] == HOME_NONE)
		run++;
	return run;
}

uint32_t frames_collect(struct frames *frames, char *from, uint32_t *homes, uint32_t pages, int *error)
{
	uint32_t done = 0;

	*error = 0;
	while (done < pages && !*error) {
		uint32_t home = homes[done], run = single_run(homes + done, pages - done), moved;
		bool single = run;

		run = single ? find_homes(frames, run, &home) : homes_run(homes + done, pages - done);
		if (!run) {
			*error = ENOSPC;
			break;
		}
		moved = move(frames, frames_address(frames, home), from + bytes_of(frames, done), run, error);
		if (single && moved)
			use(frames, home, moved);
		for (uint32_t i = 0; i < moved; i++)
			homes[done + i] = home + i;
		frames->pages += moved;
		done += moved;
		if (moved == run)
			*error = 0;
	}
	return done;
}

void frames_free(struct frames *frames, const uint32_t *homes, uint32_t pages)
{
	/* Whether single frames are exchanged for huge pages. */
	bool exchange = frames->free_pages >= BLOCK_PAGES && frames->fresh < frames->huge_count;

	for (uint32_t i = 0, run; i < pages; i += run) {
		run = in_block(homes[i], homes_run(homes + i, pages - i));
		if (exchange && is_single(frames, homes[i]))
			discard(frames, homes[i], run);
		else
			set_free(frames, homes[i], run, true);
	}
}

/* Consecutive free frames of one block. */
struct run {
	uint32_t home;
	uint32_t pages;
	uint32_t compared; /* number of blocks that were searched for them */
};

static uint32_t next_lender(const struct frames *frames, uint32_t block)
{
	return bits_next(frames->lenders, frames->lender_words, block, true);
}

/* Find better frames for this number of pages in the blocks [block, end). Returns whether the search
   is over. */
static bool search(const struct frames *frames, uint32_t block, uint32_t end, uint32_t pages,
		   struct run *best)
{
	for (block = next_lender(frames, block); block < end; block = next_lender(frames, block + 1)) {
		uint32_t first, run;

		/* The block has no better run. */
		if (best->pages < pages && frames->blocks[block].free_frames <= best->pages)
			continue;
		run = bits_best_run(frames->blocks[block].free, BLOCK_WORDS, pages, &first);
		if (bits_better(run, best->pages, pages)) {
			best->pages = run;
			best->home = home_at(block, first);
		}
		if (best->pages >= pages || ++best->compared == COMPARED_BLOCKS)
			return true;
	}
	return false;
}

/* Find consecutive free frames: enough for all pages if one of some blocks has them, else the most.
   Single frames are lent last. There must be a free frame. */
static struct run find_free(const struct frames *frames, uint32_t pages)
{
	struct run best = {0};

	if (!search(frames, frames->hand, frames->huge_count, pages, &best))
		search(frames, 0, frames->hand, pages, &best);
	if (!best.pages)
		search(frames, frames->huge_count, frames->count, pages, &best);
	if (best.pages > pages)
		best.pages = pages;
	return best;
}

uint32_t frames_borrow(struct frames *frames, uint32_t pages, uint32_t *homes)
{
	uint32_t done = 0;

	while (done < pages && frames->free_pages) {
		struct run run = find_free(frames, pages - done);

		set_free(frames, run.home, run.pages, false);
		if (!is_single(frames, run.home))
			frames->hand = (run.home - 1) / BLOCK_PAGES;
		for (uint32_t i = 0; i < run.pages; i++)
			homes[done++] = run.home + i;
	}
	return done;
}

uint32_t frames_place(struct frames *frames, uint32_t *homes, char *to, uint32_t pages, int *error)
{
	uint32_t done = 0;

	while (done < pages) {
		uint32_t home = homes[done], run = in_block(home, homes_run(homes + done, pages - done));
		char *here = frames_address(frames, home), *there = to + bytes_of(frames, done);
		uint32_t moved;

		*error = 0;
		moved = move(frames, there, here, run, error);
		frames->pages -= moved;
		if (moved && is_single(frames, home)) {
			unuse(frames, home, moved);
			memset(homes + done, 0, moved * sizeof(*homes));
		}
		done += moved;
		if (moved == run)
			continue;
		/* The kernel can keep a frame pinned for a moment after the frame was read from the
		   file. */
		if (*error != EBUSY ||
		    !uffd_copy(frames->uffd, there + bytes_of(frames, moved), here + bytes_of(frames, moved),
			       bytes_of(frames, 1), error)) {
			frames_free(frames, homes + done, pages - done);
			memset(homes + done, 0, (pages - done) * sizeof(*homes));
			break;
		}
		discard(frames, home + moved, 1);
		homes[done++] = HOME_NONE;
	}
	return done;
}

void frames_forget(struct frames *frames, uint32_t *home)
{
	if (*home != HOME_NONE)
		unuse(frames, *home, 1);
	*home = HOME_NONE;
}

/* The first home of a block without frames; HOME_NONE: each block has some. */
static uint32_t empty_block(struct frames *frames)
{
	if (frames->fresh < frames->huge_count)
		return home_at(frames->fresh++, 0);
	for (uint32_t i = 0; i < frames->huge_count; i++)
		if (!frames->blocks[i].frames)
			return home_at(i, 0);
	return HOME_NONE;
}

static uint32_t grow_huge(struct frames *frames, uint32_t home)
{
	uint64_t half = bytes_of(frames, BLOCK_PAGES / 2);
	uint32_t moved = 0;
	int error = 0;

	/* Frames that were moved away leave a page table behind. Where there is one, the kernel gives no
	   huge page, so the nursery is mapped anew. */
	if (mmap(frames->huge_nursery, 2 * half, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
		return 0;
	madvise(frames->huge_nursery, 2 * half, MADV_DONTFORK);
	madvise(frames->huge_nursery, 2 * half, MADV_HUGEPAGE);
	if (madvise(frames->huge_nursery, 2 * half, MADV_POPULATE_WRITE)) {
		madvise(frames->huge_nursery, 2 * half, MADV_DONTNEED);
		return 0;
	}
	/* When the kernel splits a huge page, it replaces pages full of zeros by its zero page (Linux 6.12,
	   try_to_map_unused_to_zeropage() in mm/migrate.c). */
	for (uint32_t i = 0; i < BLOCK_PAGES; i++)
		*(volatile char *)(frames->huge_nursery + bytes_of(frames, i)) = 1;
	/* Half of a huge page cannot be moved without splitting it. A huge page that is moved as a whole
	   would be split later, and parts of it could not be returned to the kernel before that. */
	for (uint32_t i = 0; i < 2 && moved == i * BLOCK_PAGES / 2; i++)
		moved += move(frames, frames_address(frames, home) + i * half,
			      frames->huge_nursery + i * half, BLOCK_PAGES / 2, &error);
	if (moved < BLOCK_PAGES)
		madvise(frames->huge_nursery, 2 * half, MADV_DONTNEED);
	if (!moved)
		return 0;
	use(frames, home, moved);
	set_free(frames, home, moved, true);
	frames->pages += moved;
	return moved;
}

static uint32_t grow_single(struct frames *frames, uint32_t pages)
{
	uint32_t homes[NURSERY_PAGES] = {HOME_NONE}, moved;
	int error;

	if (madvise(frames->nursery, bytes_of(frames, pages), MADV_POPULATE_WRITE)) {
		madvise(frames->nursery, bytes_of(frames, pages), MADV_DONTNEED);
		return 0;
	}
	moved = frames_collect(frames, frames->nursery, homes, pages, &error);
	if (moved < pages)
		madvise(frames->nursery, bytes_of(frames, pages), MADV_DONTNEED);
	for (uint32_t i = 0, run; i < moved; i += run) {
		run = in_block(homes[i], homes_run(homes + i, moved - i));
		set_free(frames, homes[i], run, true);
	}
	return moved;
}

uint32_t frames_grow(struct frames *frames, uint64_t pages, uint64_t room)
{
	uint32_t home = room < BLOCK_PAGES ? HOME_NONE : empty_block(frames), grown = 0;

	if (home)
		grown = grow_huge(frames, home);
	if (grown)
		return grown;
	if (pages > room)
		pages = room;
	return grow_single(frames, pages < NURSERY_PAGES ? (uint32_t)pages : NURSERY_PAGES);
}

/* The block to shrink: one with single frames or, of those with free frames, the one with the fewest
   frames, which leaves the other blocks complete. NULL: no frame is free. */
static struct block *least(struct frames *frames)
{
	struct block *found = NULL;

	for (uint32_t i = next_lender(frames, 0); i < frames->count; i = next_lender(frames, i + 1)) {
		struct block *block = &frames->blocks[i];

		if (!found || i >= frames->huge_count || block->frames < found->frames)
			found = block;
	}
	return found;
}

uint64_t frames_shrink(struct frames *frames, uint64_t pages)
{
	uint64_t done = 0;

	while (done < pages && frames->free_pages) {
		struct block *block = least(frames);
		uint32_t most = pages - done < BLOCK_PAGES ? (uint32_t)(pages - done) : BLOCK_PAGES, first;
		uint32_t run = bits_best_run(block->free, BLOCK_WORDS, most, &first);
		uint32_t home = home_at((uint32_t)(block - frames->blocks), first);

		run = run < most ? run : most;
		set_free(frames, home, run, false);
		discard(frames, home, run);
		done += run;
	}
	return done;
}
