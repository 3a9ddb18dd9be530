// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "frames.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "pagemap.h"
#include "uffd.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24 /* Linux 5.18 */
#endif

/* Maximum number of blocks for huge pages. This many blocks of 2 MiB hold 128 GiB of frames. If the
   budget is larger, the remaining frames are single. */
#ifndef HUGE_BLOCKS_MAX
#define HUGE_BLOCKS_MAX (1u << 16)
#endif

/* Number of blocks in addition to those that the budget's frames fill. They are needed because a block
   stays incomplete after some of its frames have been returned to the kernel. */
#define SPARE_BLOCKS 64u

/* Number of blocks whose homes are for single frames. All transits together can hold 128 x 256
   (TRANSITS_MAX x TRANSIT_PAGES) single frames; the remaining homes are for free single frames. */
#ifndef SINGLE_BLOCKS
#define SINGLE_BLOCKS 80u
#endif

/* Size, in pages, of the area in which single frames are populated (frames.nursery). */
#define NURSERY_PAGES 256u

static uint64_t bytes_of(const struct frames *frames, uint64_t pages)
{
	return pages << frames->page_shift;
}

/* Map the two areas in which new frames are populated, and staging memory for this number of
   blocks. Returns whether this worked. */
static bool map(struct frames *frames, uint32_t blocks)
{
	uint64_t huge = bytes_of(frames, BLOCK_PAGES), staging = blocks * huge;
	char *base;

	/* The size includes one huge page more than needed, to align the addresses. */
	frames->bytes = huge + staging + bytes_of(frames, NURSERY_PAGES) + huge;
	base = mmap(NULL, frames->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		    -1, 0);
	if (base == MAP_FAILED)
		return false;
	frames->memory = base;
	frames->huge_nursery = base + (-(uintptr_t)base & (huge - 1));
	frames->staging = frames->huge_nursery + huge;
	frames->nursery = frames->staging + staging;
	/* A frame that is shared with a forked child could not be moved. */
	madvise(base, frames->bytes, MADV_DONTFORK);
	madvise(base, frames->bytes, MADV_NOHUGEPAGE);
	return true;
}

const char *frames_init(struct frames *frames, uint64_t pages)
{
	uint64_t wanted = pages / BLOCK_PAGES + SPARE_BLOCKS;
	uint32_t blocks = wanted < HUGE_BLOCKS_MAX ? (uint32_t)wanted : HUGE_BLOCKS_MAX;

	/* Address space can be limited (RLIMIT_AS, vm.overcommit_memory). The pager also works with
	   fewer blocks. */
	while (!map(frames, blocks + SINGLE_BLOCKS) && blocks > SPARE_BLOCKS)
		blocks /= 2;
	if (!frames->memory || !homes_init(&frames->homes, blocks, SINGLE_BLOCKS)) {
		frames_destroy(frames);
		return "no memory for the staging area";
	}
	if (uffd_register(frames->uffd, frames->staging,
			  bytes_of(frames, (uint64_t)frames->homes.count * BLOCK_PAGES))) {
		frames_destroy(frames);
		return "the staging area cannot be registered with userfaultfd";
	}
	return NULL;
}

void frames_destroy(struct frames *frames)
{
	if (frames->memory)
		munmap(frames->memory, frames->bytes);
	frames->memory = NULL;
	homes_destroy(&frames->homes);
}

void frames_release(void *address, uint64_t bytes)
{
	madvise(address, bytes, MADV_DONTNEED_LOCKED);
}

/* Return frames to the kernel. They must be at home and must not be marked as free. */
static void discard(struct frames *frames, uint32_t home, uint32_t pages)
{
	frames_release(frames_address(frames, home), bytes_of(frames, pages));
	homes_use(&frames->homes, home, pages, false);
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
 * Move frames, as uffd_move() does. Returns the number of pages moved.
 *
 * The kernel refuses to move pages across the edge of a mapping (EINVAL). If the program calls
 * mlock(), mprotect() or madvise() for a part of a mapping, the kernel splits the mapping there. So
 * after EINVAL, this function tries the first half of the pages.
 *
 * Linux 6.18 can move pages without counting them. If reclaim or migration holds a page, an attempt
 * to move it fails with EAGAIN, and move_pages() in mm/userfaultfd.c tries again. But the success of
 * the next attempt does not clear the error of the failed one. So move_pages() does not count the
 * pages that the next attempt moves, and the attempt after that fails with EEXIST.
 */
static uint32_t move(struct frames *frames, char *to, char *from, uint32_t pages, int *error)
{
	uint32_t done = 0, some = pages, uncounted;

	while (done < pages) {
		uint64_t at = bytes_of(frames, done), moved;

		moved = uffd_move(frames->uffd, to + at, from + at, bytes_of(frames, some), error);
		done += (uint32_t)(moved >> frames->page_shift);
		some -= (uint32_t)(moved >> frames->page_shift);
		if (!some) {
			some = pages - done;
			continue;
		}
		if (*error == EINVAL && some > 1) {
			some /= 2;
			continue;
		}
		if (*error != EEXIST)
			break;
		uncounted = arrived(frames, to + at + moved, from + at + moved, some);
		if (!uncounted)
			break;
		/* The kernel has woken only the threads that wait for counted pages, so wake the
		   others. */
		uffd_wake(frames->uffd, to + at + moved, bytes_of(frames, uncounted));
		done += uncounted;
		some = pages - done;
		*error = 0;
	}
	return done;
}

/* Number of consecutive pages, from the first one on, that have single frames. */
static uint32_t single_run(const uint32_t *homes, uint32_t pages)
{
	uint32_t run = 0;

	while (run < pages && homes[run] == HOME_NONE)
		run++;
	return run;
}

/* Find homes for single frames, as homes_find_unused() does. If all these homes have frames, first
   returns free frames to the kernel; frames_shrink() begins with single ones. It returns many
   together, because evictions often need one home after another. */
static uint32_t find_homes(struct frames *frames, uint32_t pages, uint32_t *home)
{
	uint32_t found = homes_find_unused(&frames->homes, pages, home);

	if (!found && frames_shrink(frames, NURSERY_PAGES))
		found = homes_find_unused(&frames->homes, pages, home);
	return found;
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
			homes_use(&frames->homes, home, moved, true);
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
	/* Whether to return single frames to the kernel, so that the budget has room for huge
	   pages. */
	bool exchange = frames->homes.free_pages >= BLOCK_PAGES && frames->homes.empty;

	for (uint32_t i = 0, run; i < pages; i += run) {
		run = homes_in_block(homes[i], homes_run(homes + i, pages - i));
		if (exchange && home_is_single(&frames->homes, homes[i]))
			discard(frames, homes[i], run);
		else
			homes_set_free(&frames->homes, homes[i], run, true);
	}
}

uint32_t frames_borrow(struct frames *frames, uint32_t pages, uint32_t *homes)
{
	uint32_t done = 0;

	while (done < pages && frames->homes.free_pages) {
		uint32_t home, run = homes_find_free(&frames->homes, pages - done, &home);

		homes_set_free(&frames->homes, home, run, false);
		for (uint32_t i = 0; i < run; i++)
			homes[done++] = home + i;
	}
	return done;
}

uint32_t frames_place(struct frames *frames, uint32_t *homes, char *to, uint32_t pages, int *error)
{
	uint32_t done = 0;

	while (done < pages) {
		uint32_t home = homes[done],
			 run = homes_in_block(home, homes_run(homes + done, pages - done));
		char *here = frames_address(frames, home), *there = to + bytes_of(frames, done);
		uint32_t moved;

		*error = 0;
		moved = move(frames, there, here, run, error);
		frames->pages -= moved;
		if (moved && home_is_single(&frames->homes, home)) {
			homes_use(&frames->homes, home, moved, false);
			memset(homes + done, 0, moved * sizeof(*homes));
		}
		done += moved;
		if (moved == run)
			continue;
		/* After a read of the file into a frame, the kernel can keep the frame pinned for a
		   moment (EBUSY). A pinned frame cannot be moved, so copy the page. Also copy it if the
		   destination is locked by mlock() or protected by mprotect() (EINVAL). */
		if ((*error != EBUSY && *error != EINVAL) ||
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

void frames_forget(struct frames *frames, uint32_t *homes, uint64_t pages)
{
	for (uint64_t i = 0, run; i < pages; i += run) {
		uint32_t most = pages - i < BLOCK_PAGES ? (uint32_t)(pages - i) : BLOCK_PAGES;

		run = 1;
		if (homes[i] == HOME_NONE)
			continue;
		run = homes_in_block(homes[i], homes_run(homes + i, most));
		homes_use(&frames->homes, homes[i], (uint32_t)run, false);
		memset(homes + i, 0, run * sizeof(*homes));
	}
}

static uint32_t grow_huge(struct frames *frames, uint32_t home)
{
	uint64_t half = bytes_of(frames, BLOCK_PAGES / 2);
	uint32_t moved = 0;
	int error = 0;

	/* Frames that were moved away leave a page table behind. Where there is a page table, the kernel
	   gives no huge page, so the area is mapped anew. */
	if (mmap(frames->huge_nursery, 2 * half, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
		return 0;
	madvise(frames->huge_nursery, 2 * half, MADV_DONTFORK);
	madvise(frames->huge_nursery, 2 * half, MADV_HUGEPAGE);
	if (madvise(frames->huge_nursery, 2 * half, MADV_POPULATE_WRITE)) {
		frames_release(frames->huge_nursery, 2 * half);
		return 0;
	}
	/* When the kernel splits a huge page, it replaces pages full of zeros with its zero page
	   (Linux 6.12, try_to_map_unused_to_zeropage() in mm/migrate.c), so write to each page. */
	for (uint32_t i = 0; i < BLOCK_PAGES; i++)
		*(volatile char *)(frames->huge_nursery + bytes_of(frames, i)) = 1;
	/* Moving half of a huge page splits the huge page. If it were moved as a whole, it would be
	   split later, and until then no part of it could be returned to the kernel. */
	for (uint32_t i = 0; i < 2 && moved == i * BLOCK_PAGES / 2; i++)
		moved += move(frames, frames_address(frames, home) + i * half,
			      frames->huge_nursery + i * half, BLOCK_PAGES / 2, &error);
	if (moved < BLOCK_PAGES)
		frames_release(frames->huge_nursery, 2 * half);
	if (!moved)
		return 0;
	homes_use(&frames->homes, home, moved, true);
	homes_set_free(&frames->homes, home, moved, true);
	frames->pages += moved;
	return moved;
}

static uint32_t grow_single(struct frames *frames, uint32_t pages)
{
	uint32_t homes[NURSERY_PAGES] = {HOME_NONE}, moved;
	int error;

	if (madvise(frames->nursery, bytes_of(frames, pages), MADV_POPULATE_WRITE)) {
		frames_release(frames->nursery, bytes_of(frames, pages));
		return 0;
	}
	moved = frames_collect(frames, frames->nursery, homes, pages, &error);
	if (moved < pages)
		frames_release(frames->nursery, bytes_of(frames, pages));
	frames_free(frames, homes, moved);
	return moved;
}

uint32_t frames_grow(struct frames *frames, uint64_t pages, uint64_t room)
{
	uint32_t home = room < BLOCK_PAGES ? HOME_NONE : homes_find_block(&frames->homes), grown = 0;

	if (home)
		grown = grow_huge(frames, home);
	if (grown)
		return grown;
	if (pages > room)
		pages = room;
	return grow_single(frames, pages < NURSERY_PAGES ? (uint32_t)pages : NURSERY_PAGES);
}

void frames_return_rests(struct frames *frames)
{
	uint32_t home = 1, run;

	while ((run = homes_find_rest(&frames->homes, &home))) {
		homes_set_free(&frames->homes, home, run, false);
		discard(frames, home, run);
	}
}

uint64_t frames_shrink(struct frames *frames, uint64_t pages)
{
	uint64_t done = 0;

	while (done < pages && frames->homes.free_pages) {
		uint32_t most = pages - done < BLOCK_PAGES ? (uint32_t)(pages - done) : BLOCK_PAGES;
		uint32_t home, run = homes_find_least(&frames->homes, most, &home);

		homes_set_free(&frames->homes, home, run, false);
		discard(frames, home, run);
		done += run;
	}
	return done;
}
