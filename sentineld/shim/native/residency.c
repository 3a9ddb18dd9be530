// SPDX-License-Identifier: Apache-2.0
/* Emulated tiers: records births and drops in the residency map, and counts the pages on each tier. */
#include "residency.h"

#include <string.h>

#include "whole_pages.h"

uint64_t residency_fast_room(const struct emulation *emulation)
{
	/* computed with unsigned numbers: signed overflow would be undefined, and the daemon, which
	   writes these words, is untrusted */
	uint64_t moved = (uint64_t)__atomic_load_n(&emulation->segment->moved_fast, __ATOMIC_RELAXED);
	uint64_t flying = __atomic_load_n(&emulation->segment->in_flight_fast, __ATOMIC_ACQUIRE);
	uint64_t arrived = 0;
	int64_t room;

	if (!emulation->fast_limit)
		return UINT64_MAX;
	/* `flying` counts all pages of a batch until the batch ends, so subtract those that fast_own
	   counts already. But if the daemon has published another batch since the last call of
	   flight_arrive(), `flying` may count that batch: then subtract nothing. */
	if (emulation->flight && flight_current(emulation))
		arrived = emulation->flight->arrived_fast;
	flying -= arrived < flying ? arrived : flying;
	room = (int64_t)(emulation->fast_limit - emulation->fast_own - moved - flying);
	return room > 0 ? (uint64_t)room : 0;
}

void residency_publish_fast(const struct emulation *emulation)
{
	__atomic_store_n(&emulation->segment->fast_own, (int64_t)emulation->fast_own, __ATOMIC_RELAXED);
}

/* Give a tier to each absent page among the first `pages` pages of the map; resident pages keep
   their tier. In emulation, a tensor's birth counts as the first touch of all its pages. */
static void born(struct emulation *emulation, uint8_t *map, uint64_t pages, uint8_t birth)
{
	uint64_t room = birth == RESIDENCY_FAST ? residency_fast_room(emulation) : 0;

	for (uint64_t i = 0; i < pages; i++) {
		if (map[i])
			continue;
		map[i] = birth;
		if (birth != RESIDENCY_FAST)
			continue;
		if (room) {
			room--;
			emulation->fast_own++;
		} else {
			map[i] = RESIDENCY_SLOW;
		}
	}
	residency_publish_fast(emulation);
}

static void dropped(struct emulation *emulation, uint8_t *map, uint64_t pages)
{
	for (uint64_t i = 0; i < pages; i++)
		emulation->fast_own -= map[i] == RESIDENCY_FAST;
	memset(map, 0, pages);
	residency_publish_fast(emulation);
}

static uint64_t slot_pages(const struct emulation *emulation, uint32_t slot)
{
	return whole_pages(emulation->layout->slots[slot].bytes, emulation->page_shift);
}

static uint8_t *slot_map(const struct emulation *emulation, uint32_t slot)
{
	return emulation->arena + (emulation->layout->slots[slot].offset >> emulation->page_shift);
}

void emulation_slot_sized(struct emulation *emulation, uint32_t slot, uint64_t bytes)
{
	if (emulation && emulation->layout)
		emulation->born_pages[slot] = whole_pages(bytes, emulation->page_shift);
}

void emulation_slot_born(struct emulation *emulation, uint32_t slot)
{
	const struct slot_birth *birth;
	uint64_t pages, first;
	uint8_t *map;

	if (!emulation || emulation->paged || !emulation->layout)
		return;
	birth = &emulation->slot_birth[slot];
	map = slot_map(emulation, slot);
	pages = emulation->born_pages[slot];
	first = birth->pages < pages ? birth->pages : pages;
	born(emulation, map, first, birth->first);
	born(emulation, map + first, pages - first, birth->rest);
}

void emulation_slot_dropped(struct emulation *emulation, uint32_t slot)
{
	const struct sentinel_part *parts;
	uint32_t count;

	if (!emulation || emulation->paged || !emulation->layout)
		return;
	if (emulation->layout->slots[slot].flags & SENTINEL_SLOT_DROP)
		dropped(emulation, slot_map(emulation, slot), slot_pages(emulation, slot));
	parts = layout_parts(emulation->layout, slot, &count);
	for (uint32_t i = 0; i < count; i++)
		dropped(emulation, emulation->arena + (parts[i].offset >> emulation->page_shift),
			parts[i].bytes >> emulation->page_shift);
}

void emulation_heap_born(struct emulation *emulation, uint64_t page, uint64_t pages)
{
	if (emulation && !emulation->paged)
		born(emulation, emulation->heap + page, pages, emulation->heap_birth);
}

void emulation_heap_dropped(struct emulation *emulation, uint64_t page, uint64_t pages)
{
	if (emulation && !emulation->paged)
		dropped(emulation, emulation->heap + page, pages);
}

static void count(const uint8_t *map, uint64_t pages, uint64_t *fast, uint64_t *slow)
{
	for (uint64_t i = 0; i < pages; i++) {
		*fast += map[i] == RESIDENCY_FAST;
		*slow += map[i] > RESIDENCY_FAST;
	}
}

void emulation_resident(const struct emulation *emulation, uint64_t heap_pages, uint64_t *fast_bytes,
			uint64_t *slow_bytes)
{
	uint64_t fast = 0, slow = 0;

	count(emulation->arena, emulation->arena_pages, &fast, &slow);
	count(emulation->heap, heap_pages, &fast, &slow);
	*fast_bytes = fast << emulation->page_shift;
	*slow_bytes = slow << emulation->page_shift;
}

void emulation_recount(struct emulation *emulation, uint64_t heap_pages)
{
	uint64_t moved = (uint64_t)__atomic_load_n(&emulation->segment->moved_fast, __ATOMIC_RELAXED);
	uint64_t fast = 0, slow = 0;

	if (!emulation->fast_limit)
		return;
	count(emulation->arena, emulation->arena_pages, &fast, &slow);
	count(emulation->heap, heap_pages, &fast, &slow);
	emulation->fast_own = fast - moved;
	residency_publish_fast(emulation);
}
