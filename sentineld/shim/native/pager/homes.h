/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records which homes have frames, and which of these frames are free; see frames.h. The
 * functions move no frames. A range of `pages` consecutive homes is given by its first home. The
 * range must lie in one block, except in homes_in_block().
 */
#ifndef SENTINELD_SHIM_HOMES_H
#define SENTINELD_SHIM_HOMES_H

#include <stdbool.h>
#include <stdint.h>

#define BLOCK_PAGES 512u /* pages of a huge page on x86-64 */
#define BLOCK_WORDS (BLOCK_PAGES / 64u)

#define HOME_NONE 0u

/* BLOCK_PAGES consecutive homes. */
struct block {
	uint64_t used[BLOCK_WORDS]; /* bit: the home has a frame, free or lent */
	uint64_t free[BLOCK_WORDS]; /* bit: the home's frame is free */
	uint32_t frames; /* number of bits in `used` */
	uint32_t free_frames; /* number of bits in `free` */
};

struct homes {
	struct block *blocks;
	uint64_t *lenders; /* bit: the block has free frames */
	uint32_t lender_words;
	uint32_t huge_count; /* number of blocks for frames of huge pages; blocks for single frames follow */
	uint32_t count; /* number of blocks */
	uint32_t hand; /* the block at which the next search for free frames begins */
	uint32_t empty; /* number of blocks for frames of huge pages that have no frames */
	uint32_t next; /* the block at which the next search for an empty block begins */
	uint64_t free_pages; /* free frames */
};

/* Allocate the tables; at first, no home has a frame. The caller has zeroed *homes. Returns false if
   there is no memory. */
bool homes_init(struct homes *homes, uint32_t huge_count, uint32_t single_count);
void homes_destroy(struct homes *homes);

/* Length of the run of consecutive home numbers at the beginning of an array of `pages` homes. */
static inline uint32_t homes_run(const uint32_t *homes, uint32_t pages)
{
	uint32_t run = 1;

	while (run < pages && homes[run] == homes[0] + run)
		run++;
	return run;
}

/* Whether the home is for a single frame. */
bool home_is_single(const struct homes *homes, uint32_t home);

/* How many of the `pages` consecutive homes from `home` on are in the same block as `home`. */
uint32_t homes_in_block(uint32_t home, uint32_t pages);

/* Mark these homes as having frames (used is true), or as having none. */
void homes_use(struct homes *homes, uint32_t home, uint32_t pages, bool used);

/* Mark the frames of these homes as free (free is true), or as not free. */
void homes_set_free(struct homes *homes, uint32_t home, uint32_t pages, bool free);

/* Find consecutive unused homes for single frames: enough for all pages or, if no run is long
   enough, the longest run. Returns how many; 0: no home is left. */
uint32_t homes_find_unused(const struct homes *homes, uint32_t pages, uint32_t *home);

/* Search a few blocks for consecutive free frames. Finds enough frames for all pages or, if none of
   these blocks has enough, their longest run. Finds single frames only if no other frame is free.
   Returns how many frames it has found. There must be a free frame. */
uint32_t homes_find_free(struct homes *homes, uint32_t pages, uint32_t *home);

/* Find at most `pages` consecutive free frames to return to the kernel. Finds single frames or, if
   there are none, frames of the block with the fewest frames, so that the other blocks stay
   complete. Returns how many frames it has found. There must be a free frame. */
uint32_t homes_find_least(const struct homes *homes, uint32_t pages, uint32_t *home);

/* Find consecutive free frames of an incomplete block for frames of a huge page: one whose other frames
   were returned to the kernel or forgotten. Searches from the block of *home on. Returns how many frames
   it has found; 0: there are no further ones. */
uint32_t homes_find_rest(const struct homes *homes, uint32_t *home);

/* The first home of a block without frames, for a huge page; HOME_NONE: every block has frames. */
uint32_t homes_find_block(struct homes *homes);

#endif
