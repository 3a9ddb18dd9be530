// SPDX-License-Identifier: Apache-2.0
/*
 * Explicit placement: the tiers that the script asks for, by place() and placing() in
 * sentineld.shim. A request is kept with the tensor's block of the heap and ends when the
 * tensor is freed. The shim only reports it to the daemon, whose plans comply with it.
 */
#define _GNU_SOURCE
#include "place.h"

#include "arenas.h"
#include "shim.h"

API int sentinel_placing(int placement);
API int sentinel_placeable(void *address);
API void sentinel_place(void *address, int placement);
API uint64_t sentinel_placement_changes(void);
API uint64_t sentinel_placed(uint64_t (*rows)[2], uint64_t rows_max);

/* The placement of this thread's births: enum sentinel_placement. */
static _Thread_local uint8_t placing;

/* Number of times that the placement of a block of the heap has changed. When a placed block is
   freed, its placement changes to SENTINEL_PLACEMENT_AUTO. Needs the shim's lock. */
static uint64_t changes;

uint8_t placement_of_births(void)
{
	return placing;
}

void placement_record(uint8_t placement, const void *address, const struct heap_birth *birth)
{
	bool in_step = birth->step == (uint32_t)shim.step;

	if (shim.recording)
		ring_put(SENTINEL_EVENT_PLACED, placement, (uintptr_t)address, birth->bytes,
			 in_step ? birth->cursor : NOT_IN_SEQUENCE, (uint16_t)shim.layer);
}

void placement_set(struct heap_block *block, uint8_t placement)
{
	if (block->placement != placement)
		changes++;
	block->placement = placement;
}

/* Set the placement of the calling thread's births. Returns the former placement. */
API int sentinel_placing(int placement)
{
	int before = placing;

	placing = (uint8_t)placement;
	return before;
}

/* Whether the address is that of a live tensor of the heap or of an arena. In a forked child, true
   for every address: sentinel_place() has no effect there, so there is nothing to refuse. */
API int sentinel_placeable(void *address)
{
	int found;

	if (shim.child)
		return 1;
	pthread_mutex_lock(&shim.lock);
	found = heap_find(&shim.heap, address) || arena_holds(address);
	pthread_mutex_unlock(&shim.lock);
	return found;
}

/* Place the tensor at this address. This has no effect on a tensor in an arena, because the live
   plan has chosen its tier. */
API void sentinel_place(void *address, int placement)
{
	struct heap_block *block;

	if (shim.child)
		return;
	pthread_mutex_lock(&shim.lock);
	block = heap_find(&shim.heap, address);
	if (block) {
		placement_set(block, (uint8_t)placement);
		placement_record((uint8_t)placement, address, &block->birth);
	}
	pthread_mutex_unlock(&shim.lock);
}

/* A number that changes whenever a request, or the free of a placed tensor, changes the result of
   sentinel_placed(). The number does not change when a new step begins, although the result then
   also contains the placed tensors that were born in the previous step. */
API uint64_t sentinel_placement_changes(void)
{
	uint64_t now;

	pthread_mutex_lock(&shim.lock);
	now = changes;
	pthread_mutex_unlock(&shim.lock);
	return now;
}

/* For each placed tensor of the heap that was not born in the current step, store (address,
   placement) in `rows`, in ascending order of address. Returns the number of rows. */
API uint64_t sentinel_placed(uint64_t (*rows)[2], uint64_t rows_max)
{
	const struct heap *heap = &shim.heap;
	uint64_t count = 0;

	pthread_mutex_lock(&shim.lock);
	for (uint32_t i = heap->first; i != HEAP_NONE && count < rows_max; i = heap->blocks[i].after) {
		const struct heap_block *block = &heap->blocks[i];

		if (!block->live || !block->placement || block->birth.step == (uint32_t)shim.step)
			continue;
		rows[count][0] = (uintptr_t)heap_address(heap, block);
		rows[count++][1] = block->placement;
	}
	pthread_mutex_unlock(&shim.lock);
	return count;
}
