// SPDX-License-Identifier: Apache-2.0
/* Writes records of all live tensors. */
#include "place.h"
#include "shim.h"

static void put_live(const void *address, uint64_t bytes)
{
	ring_put(SENTINEL_EVENT_ALLOC, SENTINEL_ALLOC_LIVE, (uintptr_t)address, bytes, NOT_IN_SEQUENCE, 0);
}

static void put_live_arena(const struct arena *arena)
{
	for (uint32_t slot = 0; slot < arena->layout.header->slot_count; slot++) {
		const struct sentinel_slot *place = &arena->layout.slots[slot];
		uint64_t page = place->offset >> arena->page_shift;

		if ((place->flags & SENTINEL_SLOT_PLANNED) && arena->slot_at[page] == slot + 1)
			put_live(arena->base + place->offset, arena->born_bytes[slot]);
	}
}

void ring_put_live(void)
{
	const struct heap *heap = &shim.heap;

	for (uint32_t i = heap->first; i != HEAP_NONE; i = heap->blocks[i].after) {
		const struct heap_block *block = &heap->blocks[i];

		if (!block->live)
			continue;
		put_live(heap_address(heap, block), block->birth.bytes);
		if (block->placement)
			placement_record(block->placement, heap_address(heap, block), &block->birth);
	}
	if (shim.arena)
		put_live_arena(shim.arena);
	for (const struct arena *arena = shim.older; arena; arena = arena->older)
		put_live_arena(arena);
}
