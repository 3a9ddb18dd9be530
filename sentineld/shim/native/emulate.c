// SPDX-License-Identifier: Apache-2.0
/* Emulated and paged tiers: creates the residency map and the tables for a layout. */
#define _GNU_SOURCE
#include "emulate.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "residency.h"

#define SEGMENT_ALIGN 4096ull
#define ARENA_MAP_OFFSET SEGMENT_ALIGN /* the header has a page of its own */

/* The map's value for a page on the node. */
static uint8_t value_of(int32_t node)
{
	return node < 0 || node > 254 ? RESIDENCY_FAST : (uint8_t)(node + 1);
}

/* The map's value for a page born at the offset. *end: set to the end of the range with this value. */
static uint8_t birth_at(const struct layout *layout, uint64_t offset, uint64_t *end)
{
	*end = UINT64_MAX;
	for (uint32_t i = 0; i < layout->header->region_count; i++) {
		const struct sentinel_region *region = &layout->regions[i];

		if (offset - region->offset < region->bytes) {
			*end = region->offset + region->bytes;
			return value_of(region->node);
		}
	}
	return RESIDENCY_FAST;
}

/* The map's values for the slot's pages at birth. A slot can span two regions. */
static struct slot_birth slot_birth(const struct layout *layout, const struct sentinel_slot *slot,
				    uint32_t page_shift)
{
	struct slot_birth birth = {.pages = UINT64_MAX};
	uint64_t end, rest_end;

	birth.first = birth.rest = birth_at(layout, slot->offset, &end);
	if (end - slot->offset < slot->bytes) {
		birth.pages = (end - slot->offset) >> page_shift;
		birth.rest = birth_at(layout, end, &rest_end);
	}
	return birth;
}

static bool make_segment(struct emulation *emulation, const struct layout *layout, const struct heap *heap)
{
	uint64_t arena_pages = layout->header->arena_bytes >> heap->page_shift;
	uint64_t heap_offset = ARENA_MAP_OFFSET + ((arena_pages + 7) & ~7ull);
	uint64_t last_offset = (heap_offset + heap->pages + SEGMENT_ALIGN - 1) & ~(SEGMENT_ALIGN - 1);
	uint64_t last_bytes = sizeof(struct sentinel_flight);
	uint64_t bytes;
	struct rlimit limit;
	void *base;

	if (emulation->paged)
		last_bytes = sizeof(struct sentinel_paging);
	bytes = (last_offset + last_bytes + SEGMENT_ALIGN - 1) & ~(SEGMENT_ALIGN - 1);
	/* Above RLIMIT_FSIZE, ftruncate would raise SIGXFSZ. */
	if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur < bytes)
		return false;
	emulation->fd = memfd_create("sentinel-residency", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (emulation->fd < 0 || ftruncate(emulation->fd, (off_t)bytes))
		return false;
	/* The daemon maps the file, so its size must never change. */
	if (fcntl(emulation->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return false;
	base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, emulation->fd, 0);
	if (base == MAP_FAILED)
		return false;
	emulation->segment = base;
	emulation->bytes = bytes;
	emulation->arena = (uint8_t *)base + ARENA_MAP_OFFSET;
	emulation->heap = (uint8_t *)base + heap_offset;
	emulation->arena_pages = arena_pages;
	emulation->heap_pages = heap->pages;
	emulation->flight_offset = last_offset;
	*emulation->segment = (struct sentinel_residency){
		.magic = SENTINEL_RESIDENCY_MAGIC,
		.version = SENTINEL_SHIM_VERSION,
		.page_bytes = 1u << heap->page_shift,
		.layout_id = layout->header->layout_id,
		.arena_offset = ARENA_MAP_OFFSET,
		.arena_pages = arena_pages,
		.heap_offset = heap_offset,
		.heap_pages = heap->pages,
		.paging_offset = emulation->paged ? last_offset : 0,
		.flight_offset = emulation->paged ? 0 : last_offset,
	};
	return true;
}

/*
 * Copy the residency of the heap's live blocks from the former map. If there is no former map, all
 * pages of these blocks count as fast. If the fast node's capacity is limited, two kinds of fast
 * pages then become slow:
 *   - the pages at the highest addresses, if the fast node has no room for all fast pages;
 *   - the pages of tensors that were born in the step that has just ended. These tensors are taken
 *     for short-lived ones: the next step will probably allocate them again, in the arena, where
 *     they need room on the fast node.
 */
static void copy_heap_residency(struct emulation *emulation, const struct heap *heap,
				const struct emulation *before, uint32_t step)
{
	for (uint32_t i = heap->first; i != HEAP_NONE; i = heap->blocks[i].after) {
		const struct heap_block *block = &heap->blocks[i];
		uint8_t *map = emulation->heap + block->page;
		bool short_lived;
		uint64_t room;

		if (!block->live)
			continue;
		if (before)
			memcpy(map, before->heap + block->page, block->pages);
		else
			memset(map, RESIDENCY_FAST, block->pages);
		short_lived = emulation->fast_limit && block->birth.step == step;
		room = short_lived ? 0 : residency_fast_room(emulation);
		for (uint32_t page = 0; page < block->pages; page++) {
			if (map[page] != RESIDENCY_FAST)
				continue;
			if (room) {
				room--;
				emulation->fast_own++;
			} else {
				map[page] = RESIDENCY_SLOW;
			}
		}
	}
}

const char *emulation_new(struct emulation **out, const struct layout *layout, const struct heap *heap,
			  bool paged, const struct emulation *before, uint32_t step)
{
	const struct sentinel_layout *header = layout->header;
	struct emulation *emulation = calloc(1, sizeof(*emulation));
	uint32_t row = 0;

	if (!emulation)
		return "no memory for the emulated tiers";
	emulation->fd = -1;
	emulation->page_shift = heap->page_shift;
	emulation->layout = layout;
	emulation->paged = paged;
	emulation->fast_limit = paged ? 0 : header->fast_pages;
	emulation->heap_birth = value_of(header->heap_node);
	emulation->slot_birth = calloc((uint64_t)header->slot_count + 1, sizeof(*emulation->slot_birth));
	emulation->born_pages = calloc((uint64_t)header->slot_count + 1, sizeof(*emulation->born_pages));
	emulation->first_access = calloc((uint64_t)header->boundary_count + 1, sizeof(uint32_t));
	if (!paged)
		emulation->flight = calloc(1, sizeof(*emulation->flight));
	if (!emulation->slot_birth || !emulation->born_pages || !emulation->first_access ||
	    (!paged && !emulation->flight) || !make_segment(emulation, layout, heap)) {
		emulation_delete(emulation);
		return "no memory for the residency map, or it exceeds the file size limit (ulimit -f)";
	}
	for (uint32_t slot = 0; slot < header->slot_count; slot++) {
		emulation->slot_birth[slot] = slot_birth(layout, &layout->slots[slot], heap->page_shift);
		emulation_slot_sized(emulation, slot, layout->slots[slot].bytes);
	}
	for (uint32_t i = 0; i < header->access_count; i++)
		emulation->defers |= layout->accesses[i].flags & SENTINEL_ACCESS_AFTER;
	for (uint32_t stretch = 0; stretch <= header->boundary_count; stretch++) {
		while (row < header->access_count && layout->accesses[row].stretch < stretch)
			row++;
		emulation->first_access[stretch] = row;
	}
	if (!paged)
		copy_heap_residency(emulation, heap, before, step);
	emulation->segment->fast_limit = emulation->fast_limit;
	residency_publish_fast(emulation);
	if (before) {
		emulation->owed_ps = before->owed_ps;
		emulation->paid_ns = before->paid_ns;
		emulation->segment->owed_ns = before->segment->owed_ns;
		emulation->segment->paid_ns = before->segment->paid_ns;
	}
	*out = emulation;
	return NULL;
}

void emulation_delete(struct emulation *emulation)
{
	if (emulation->segment)
		munmap(emulation->segment, emulation->bytes);
	if (emulation->fd >= 0)
		close(emulation->fd);
	free(emulation->slot_birth);
	free(emulation->born_pages);
	free(emulation->first_access);
	free(emulation->flight);
	free(emulation);
}
