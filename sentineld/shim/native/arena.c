// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "arena.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "paged_memory.h"
#include "whole_pages.h"

#define WORD_BITS 64
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

static uint64_t slot_pages(const struct arena *arena, uint32_t slot)
{
	return whole_pages(arena->layout.slots[slot].bytes, arena->page_shift);
}

static uint64_t slot_page(const struct arena *arena, uint32_t slot)
{
	return arena->layout.slots[slot].offset >> arena->page_shift;
}

enum span { SPAN_TEST, SPAN_SET, SPAN_CLEAR };

/* Test, set or clear the bits of [page, page + pages); returns whether any of them was set before. */
static bool live_span(struct arena *arena, uint64_t page, uint64_t pages, enum span action)
{
	bool any = false;

	while (pages) {
		uint64_t shift = page % WORD_BITS, room = WORD_BITS - shift;
		uint64_t count = pages < room ? pages : room;
		uint64_t mask = (count == WORD_BITS ? ~0ull : (1ull << count) - 1) << shift;
		uint64_t *word = &arena->live_map[page / WORD_BITS];

		any |= (*word & mask) != 0;
		if (action == SPAN_TEST && any)
			return true;
		if (action == SPAN_SET)
			*word |= mask;
		else if (action == SPAN_CLEAR)
			*word &= ~mask;
		page += count;
		pages -= count;
	}
	return any;
}

/* The first page of [page, pages) that is live or, if `live` is false, the first one that is not
   live. Returns `pages` if there is none. */
static uint64_t next_page(const struct arena *arena, uint64_t page, uint64_t pages, bool live)
{
	while (page < pages) {
		uint64_t word = arena->live_map[page / WORD_BITS];
		uint64_t bits = (live ? word : ~word) >> page % WORD_BITS;

		if (bits) {
			page += (uint64_t)__builtin_ctzll(bits);
			break;
		}
		page += WORD_BITS - page % WORD_BITS;
	}
	return page < pages ? page : pages;
}

int memory_prefer(void *address, uint64_t bytes, int32_t node)
{
	unsigned long mask[1024 / (8 * sizeof(unsigned long)) + 1] = {0};
	int mode = node < 0 ? MPOL_DEFAULT : MPOL_PREFERRED;

	if (!bytes)
		return 0;
	if (node >= 0)
		mask[(unsigned)node / (8 * sizeof(*mask))] = 1ul << ((unsigned)node % (8 * sizeof(*mask)));
	/* The kernel reads only maxnode - 1 bits, so the mask has a spare word. */
	if (syscall(SYS_mbind, address, bytes, mode, node < 0 ? NULL : mask,
		    node < 0 ? 0ul : 8ul * sizeof(mask), 0u))
		return -errno;
	return 0;
}

/* Map anonymous memory that begins at a multiple of SENTINEL_HUGE_BYTES. Returns MAP_FAILED if the
   kernel refuses. */
static void *map_aligned(uint64_t bytes)
{
	uint64_t mapped = bytes + SENTINEL_HUGE_BYTES, before;
	char *base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			  -1, 0);

	if (base == MAP_FAILED)
		return base;
	before = -(uintptr_t)base % SENTINEL_HUGE_BYTES;
	if (before)
		munmap(base, before);
	munmap(base + before + bytes, mapped - before - bytes);
	return base + before;
}

/* Use huge pages in the layout's ranges of huge pages, and base pages elsewhere. The plan chooses
   huge pages only where they do not keep memory resident longer than base pages would. */
static void choose_page_sizes(const struct arena *arena, const struct layout *layout)
{
	/* Ignore errors, for example on a kernel without huge pages. */
	madvise(arena->base, arena->bytes, MADV_NOHUGEPAGE);
	for (uint32_t i = 0; i < layout->header->huge_count; i++)
		madvise(arena->base + layout->huge[i].offset, layout->huge[i].bytes, MADV_HUGEPAGE);
}

const char *arena_new(struct arena **out, struct layout *layout)
{
	const struct sentinel_layout *header = layout->header;
	struct arena *arena = calloc(1, sizeof(*arena));
	const char *problem = "no memory for the arena";
	uint64_t pages;

	if (!arena)
		return problem;
	arena->page_shift = (unsigned)__builtin_ctzl((unsigned long)sysconf(_SC_PAGESIZE));
	pages = header->arena_bytes >> arena->page_shift;
	arena->live_map = calloc(pages / WORD_BITS + 1, sizeof(*arena->live_map));
	arena->slot_at = calloc(pages + 1, sizeof(*arena->slot_at));
	arena->birth_step = calloc((uint64_t)header->slot_count + 1, sizeof(*arena->birth_step));
	arena->born_bytes = calloc((uint64_t)header->slot_count + 1, sizeof(*arena->born_bytes));
	if (!arena->live_map || !arena->slot_at || !arena->birth_step || !arena->born_bytes)
		goto fail;
	if (header->arena_bytes) {
		void *base = map_aligned(header->arena_bytes);

		if (base == MAP_FAILED)
			goto fail;
		arena->base = base;
		arena->bytes = header->arena_bytes;
		choose_page_sizes(arena, layout);
	}
	for (uint32_t i = 0; i < header->region_count; i++) {
		const struct sentinel_region *region = &layout->regions[i];

		/* An empty arena has no address, so skip empty regions. */
		if (region->node >= 0 && region->bytes && !layout_emulated(header) &&
		    memory_prefer(arena->base + region->offset, region->bytes, region->node)) {
			problem = MBIND_REFUSED;
			goto fail;
		}
	}
	arena->layout = *layout;
	*layout = (struct layout){0};
	*out = arena;
	return NULL;
fail:
	arena_delete(arena);
	return problem;
}

void arena_delete(struct arena *arena)
{
	paging_remove(arena->base, arena->bytes);
	if (arena->bytes)
		munmap(arena->base, arena->bytes);
	free(arena->live_map);
	free(arena->slot_at);
	free(arena->birth_step);
	free(arena->born_bytes);
	layout_free(&arena->layout);
	free(arena);
}

void *arena_take(struct arena *arena, uint32_t slot, uint64_t bytes, uint32_t step)
{
	uint64_t page = slot_page(arena, slot), pages = slot_pages(arena, slot);

	if (live_span(arena, page, pages, SPAN_TEST))
		return NULL;
	live_span(arena, page, pages, SPAN_SET);
	arena->slot_at[page] = slot + 1;
	arena->birth_step[slot] = step;
	arena->born_bytes[slot] = bytes;
	arena->live_tensors++;
	arena->live_pages += pages;
	return arena->base + (page << arena->page_shift);
}

void arena_populate(const struct arena *arena, uint32_t slot)
{
	if (arena->layout.slots[slot].flags & SENTINEL_SLOT_POPULATE)
		madvise(arena->base + (slot_page(arena, slot) << arena->page_shift),
			whole_pages(arena->born_bytes[slot], arena->page_shift) << arena->page_shift,
			MADV_POPULATE_WRITE);
}

int64_t arena_find(const struct arena *arena, const void *address)
{
	uint64_t offset = (uintptr_t)address - (uintptr_t)arena->base;

	if (offset >= arena->bytes || offset & ((1ull << arena->page_shift) - 1))
		return -1;
	return (int64_t)arena->slot_at[offset >> arena->page_shift] - 1;
}

void arena_drop(struct arena *arena, uint32_t slot, bool all)
{
	const struct sentinel_part *parts;
	uint32_t count;

	/* The pages stay marked live until arena_give(), so no tensor is born on them earlier. */
	if (all || arena->layout.slots[slot].flags & SENTINEL_SLOT_DROP)
		memory_drop(arena->base + (slot_page(arena, slot) << arena->page_shift),
			    slot_pages(arena, slot) << arena->page_shift);
	if (all)
		return;
	parts = layout_parts(&arena->layout, slot, &count);
	for (uint32_t i = 0; i < count; i++)
		memory_drop(arena->base + parts[i].offset, parts[i].bytes);
}

void arena_drop_dead(const struct arena *arena)
{
	uint64_t pages = arena->bytes >> arena->page_shift, end;

	for (uint64_t page = next_page(arena, 0, pages, false); page < pages;
	     page = next_page(arena, end, pages, false)) {
		end = next_page(arena, page, pages, true);
		memory_drop(arena->base + (page << arena->page_shift), (end - page) << arena->page_shift);
	}
}

void arena_give(struct arena *arena, uint32_t slot)
{
	uint64_t page = slot_page(arena, slot), pages = slot_pages(arena, slot);

	live_span(arena, page, pages, SPAN_CLEAR);
	arena->slot_at[page] = 0;
	arena->live_tensors--;
	arena->live_pages -= pages;
}
