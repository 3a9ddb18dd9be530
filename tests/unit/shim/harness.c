// SPDX-License-Identifier: Apache-2.0
/*
 * Functions that the tests call through ctypes to use the page heap, the arena, the schedule,
 * emulated tiers and bit maps.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "arena.h"
#include "emulate.h"
#include "heap.h"
#include "pager/bits.h"
#include "schedule.h"

void test_bits_set(uint64_t *words, uint32_t first, uint32_t count, int on)
{
	bits_set(words, first, count, on);
}

uint32_t test_bits_best_run(const uint64_t *words, uint32_t count, uint32_t wanted, uint32_t *first)
{
	return bits_best_run(words, count, wanted, first);
}

struct heap *test_heap_new(uint64_t bytes)
{
	struct heap *heap = calloc(1, sizeof(*heap));

	return heap && !heap_init(heap, bytes, bytes) ? heap : NULL;
}

void test_heap_delete(struct heap *heap)
{
	munmap(heap->base, heap->bytes);
	munmap(heap->block_at, heap->pages * sizeof(*heap->block_at));
	munmap(heap->blocks, (heap->pages + 2ull) * sizeof(*heap->blocks));
	free(heap);
}

void *test_heap_take(struct heap *heap, uint64_t bytes)
{
	struct heap_birth birth = {.bytes = bytes};

	return heap_take(heap, &birth);
}

/* Frees the live block that begins at address, and returns 1. Returns 0 if there is no such block. */
int test_heap_give(struct heap *heap, void *address)
{
	struct heap_block *block = heap_find(heap, address);

	if (block)
		heap_give(heap, block);
	return block != NULL;
}

uint64_t test_heap_live_pages(const struct heap *heap)
{
	return heap->live_pages;
}

/*
 * Returns the number of blocks; 0 if they do not cover the heap exactly, or if two free blocks are
 * adjacent.
 */
uint32_t test_heap_blocks(const struct heap *heap)
{
	uint32_t count = 0, page = 0;
	bool before_free = false;

	for (uint32_t i = heap->first; i != HEAP_NONE; i = heap->blocks[i].after) {
		const struct heap_block *block = &heap->blocks[i];

		if (block->page != page || !block->pages || (before_free && !block->live))
			return 0;
		before_free = !block->live;
		page += block->pages;
		count++;
	}
	return page == heap->pages ? count : 0;
}

struct arena *test_arena_new(int fd, const char **problem)
{
	struct layout layout;
	struct arena *arena = NULL;

	*problem = layout_read(&layout, fd, (uint64_t)sysconf(_SC_PAGESIZE));
	if (*problem)
		return NULL;
	*problem = arena_new(&arena, &layout);
	if (*problem)
		layout_free(&layout);
	return arena;
}

void test_arena_free(struct arena *arena, uint32_t slot)
{
	arena_drop(arena, slot, false);
	arena_give(arena, slot);
}

/* Makes emulated tiers for the layout in the file fd. test_emulation_delete() frees them and the layout. */
struct emulation *test_emulation_new(int fd, struct heap *heap, struct emulation *before, uint32_t step,
				     const char **problem)
{
	struct layout *layout = calloc(1, sizeof(*layout));
	struct emulation *emulation = NULL;

	*problem = layout ? layout_read(layout, fd, (uint64_t)sysconf(_SC_PAGESIZE)) : "no memory";
	if (!*problem)
		*problem = emulation_new(&emulation, layout, heap, false, before, step);
	if (*problem)
		free(layout);
	return emulation;
}

void test_emulation_delete(struct emulation *emulation)
{
	struct layout *layout = (struct layout *)emulation->layout;

	emulation_delete(emulation);
	layout_free(layout);
	free(layout);
}

int test_emulation_fd(const struct emulation *emulation)
{
	return emulation->fd;
}

/*
 * Calls emulation_charge() for the stretch: this adds delays to the delay debt. Writes the number
 * of accesses that the call counts to served[0], and the number of those to fast pages to
 * served[1].
 */
void test_emulation_charge(struct emulation *emulation, uint32_t stretch, uint32_t *served)
{
	struct served found = emulation_charge(emulation, stretch);

	served[0] = found.accesses;
	served[1] = found.fast;
}

struct schedule *test_schedule_new(int fd, const char **problem)
{
	struct schedule *schedule = calloc(1, sizeof(*schedule));
	struct layout layout;

	*problem = layout_read(&layout, fd, (uint64_t)sysconf(_SC_PAGESIZE));
	if (!*problem) {
		bool made = schedule_init(schedule, &layout);

		layout_free(&layout);
		if (made)
			return schedule;
	}
	free(schedule);
	return NULL;
}

void test_schedule_delete(struct schedule *schedule)
{
	schedule_destroy(schedule);
	free(schedule);
}

/* Writes the index of each due move to `rows`, in order, and returns the number of due moves. */
uint32_t test_schedule_due(const struct schedule *schedule, int evict, uint32_t *rows)
{
	const struct due_moves *due = evict ? &schedule->evict : &schedule->fetch;

	for (uint32_t i = 0; i < due->count; i++)
		rows[i] = (uint32_t)(due->first[i].move - schedule->moves);
	return due->count;
}

/* Calls schedule_done() for the first due move. */
int test_schedule_done(struct schedule *schedule, int evict, uint64_t pages, uint64_t began)
{
	struct due_moves *due = evict ? &schedule->evict : &schedule->fetch;

	return schedule_done(schedule, due, due->first, pages, began);
}

uint64_t test_schedule_late(const struct schedule *schedule)
{
	return schedule->late;
}
