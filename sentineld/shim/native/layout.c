// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "layout.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ARENA_BYTES_MAX (1ull << 44)
#define NODE_MAX 1023
#define SLOT_FLAGS                                                                                           \
	(SENTINEL_SLOT_PLANNED | SENTINEL_SLOT_DROP | SENTINEL_SLOT_POPULATE | SENTINEL_SLOT_DROP_PARTS |    \
	 SENTINEL_SLOT_OPTIONAL)
#define SLOW_PS_MAX 1000000000000ull /* one second per page */
#define HIDDEN_PS_MAX 1000000000000000ull /* 1000 seconds in a stretch */

/* Read the layout's file into allocated memory, and set *bytes to its size. Returns NULL on
   failure. Uses pread: if the file were mapped and then truncated, an access would raise SIGBUS. */
static void *copy_of(int fd, uint64_t *bytes)
{
	struct stat status;
	uint64_t done = 0;
	char *copy;

	if (fstat(fd, &status) || status.st_size < (off_t)sizeof(struct sentinel_layout) ||
	    (uint64_t)status.st_size > LAYOUT_BYTES_MAX)
		return NULL;
	*bytes = (uint64_t)status.st_size;
	copy = malloc(*bytes);
	while (copy && done < *bytes) {
		ssize_t got = pread(fd, copy + done, *bytes - done, (off_t)done);

		if (got <= 0) {
			free(copy);
			return NULL;
		}
		done += (uint64_t)got;
	}
	return copy;
}

/* The end of the table of `count` items at `offset`; 0 if the table is not 8-byte aligned or not
   inside [from, total). */
static uint64_t table_end(uint64_t offset, uint64_t count, uint64_t item_bytes, uint64_t from, uint64_t total)
{
	uint64_t bytes = count * item_bytes; /* no overflow: count < 2^32, item_bytes <= 40 */

	if (offset % 8 || offset < from || offset > total || bytes > total - offset)
		return 0;
	return offset + bytes;
}

static const char *check_slots(const struct layout *layout, uint64_t page_bytes)
{
	uint64_t arena = layout->header->arena_bytes;

	for (uint32_t i = 0; i < layout->header->slot_count; i++) {
		const struct sentinel_slot *slot = &layout->slots[i];
		uint64_t whole;

		if (slot->flags & ~(uint32_t)SLOT_FLAGS)
			return "a slot has unknown flags";
		if (slot->bytes < SENTINEL_TENSOR_BYTES_MIN || slot->bytes > ARENA_BYTES_MAX)
			return "a slot's size is out of range";
		if (!(slot->flags & SENTINEL_SLOT_PLANNED))
			continue;
		whole = (slot->bytes + page_bytes - 1) & ~(page_bytes - 1);
		if (slot->offset % page_bytes || slot->offset > arena || whole > arena - slot->offset)
			return "a slot lies outside the arena or is not page-aligned";
	}
	return NULL;
}

static const char *check_parts(const struct layout *layout, uint64_t page_bytes)
{
	const struct sentinel_layout *header = layout->header;
	uint64_t end = 0;

	for (uint32_t i = 0; i < header->part_count; i++) {
		const struct sentinel_part *part = &layout->parts[i];
		const struct sentinel_slot *slot;
		uint64_t whole;

		if (part->slot >= header->slot_count || (i && part->slot < part[-1].slot))
			return "the parts are not sorted by slot, or a part's slot does not exist";
		slot = &layout->slots[part->slot];
		if (!(slot->flags & SENTINEL_SLOT_PLANNED) || !(slot->flags & SENTINEL_SLOT_DROP_PARTS))
			return "a part belongs to a slot that does not drop parts";
		if (!i || part->slot != part[-1].slot)
			end = slot->offset;
		whole = (slot->bytes + page_bytes - 1) & ~(page_bytes - 1);
		if (part->offset % page_bytes || part->bytes % page_bytes || part->offset < end ||
		    part->offset - slot->offset > whole ||
		    part->bytes > whole - (part->offset - slot->offset))
			return "a part lies outside its slot, is not page-aligned, or overlaps another";
		end = part->offset + part->bytes;
	}
	return NULL;
}

static const char *check_rest(const struct layout *layout, uint64_t page_bytes)
{
	const struct sentinel_layout *header = layout->header;

	for (uint32_t i = 0; i < header->cut_count; i++)
		if (layout->cuts[i] >= header->slot_count || (i && layout->cuts[i] <= layout->cuts[i - 1]))
			return "the cuts are not ascending, or a cut is beyond the last allocation";
	for (uint32_t i = 0; i < header->region_count; i++) {
		const struct sentinel_region *region = &layout->regions[i];

		if (region->offset % page_bytes || region->bytes % page_bytes ||
		    region->offset > header->arena_bytes ||
		    region->bytes > header->arena_bytes - region->offset)
			return "a region lies outside the arena or is not page-aligned";
		if (region->node < -1 || region->node > NODE_MAX)
			return "a region's node is out of range";
	}
	for (uint32_t i = 0; i < header->boundary_count; i++)
		if ((layout->waits[i].flags & SENTINEL_WAIT_ENABLED) &&
		    layout->waits[i].boundary >= header->boundary_count)
			return "a wait's boundary does not exist";
	return NULL;
}

static const char *check_accesses(const struct layout *layout, uint64_t page_bytes)
{
	const struct sentinel_layout *header = layout->header;

	for (uint32_t i = 0; i < header->access_count; i++) {
		const struct sentinel_access *access = &layout->accesses[i];
		bool hides = access->flags & SENTINEL_ACCESS_HIDES;

		if (access->stretch >= header->boundary_count ||
		    (i && access->stretch < layout->accesses[i - 1].stretch))
			return "the accesses are not sorted by stretch, or a stretch does not exist";
		if (access->offset % page_bytes || access->offset > ARENA_BYTES_MAX ||
		    access->slow_ps > (hides ? HIDDEN_PS_MAX : SLOW_PS_MAX))
			return "an access's offset or delay is out of range or not page-aligned";
		if (access->node < 0 || access->node > NODE_MAX)
			return "an access's node is out of range";
		if (access->slot > header->slot_count)
			return "an access's slot does not exist";
	}
	return NULL;
}

static const char *check_huge(const struct layout *layout, uint64_t page_bytes)
{
	const struct sentinel_layout *header = layout->header;
	uint64_t end = 0;

	for (uint32_t i = 0; i < header->huge_count; i++) {
		const struct sentinel_huge *huge = &layout->huge[i];

		if (huge->offset % page_bytes || huge->bytes % page_bytes || !huge->bytes)
			return "a range of huge pages is empty or not page-aligned";
		if (huge->offset < end)
			return "the ranges of huge pages are not ascending or overlap";
		if (huge->offset > header->arena_bytes || huge->bytes > header->arena_bytes - huge->offset)
			return "a range of huge pages lies outside the arena";
		end = huge->offset + huge->bytes;
	}
	return NULL;
}

static const char *check_moves(const struct layout *layout, uint64_t page_bytes)
{
	const struct sentinel_layout *header = layout->header;

	for (uint32_t i = 0; i < header->move_count; i++) {
		const struct sentinel_move *move = &layout->moves[i];
		uint64_t pages = move->flags & SENTINEL_MOVE_HEAP ? ARENA_BYTES_MAX : header->arena_bytes;

		pages /= page_bytes;
		if (move->flags & ~(uint32_t)(SENTINEL_MOVE_EVICT | SENTINEL_MOVE_HEAP))
			return "a move has unknown flags";
		if (move->boundary >= header->boundary_count ||
		    (i && move->boundary < layout->moves[i - 1].boundary))
			return "the moves are not sorted by boundary, or a boundary does not exist";
		if (!move->deadline || move->deadline > header->boundary_count || !move->end ||
		    move->end > header->boundary_count)
			return "a move's deadline or end is out of range";
		if (move->page > pages || move->pages > pages - move->page)
			return "a move lies outside its space";
	}
	return NULL;
}

static const char *check(struct layout *layout, uint64_t bytes, uint64_t page_bytes)
{
	const struct sentinel_layout *header = layout->header;
	const char *base = layout->copy, *problem;
	uint64_t end = sizeof(*header);

	if (header->magic != SENTINEL_LAYOUT_MAGIC)
		return "not a layout";
	if (header->version != SENTINEL_SHIM_VERSION)
		return "the layout has another protocol version";
	if (header->total_bytes > bytes)
		return "the layout's file is shorter than its total_bytes";
	if (header->arena_bytes > ARENA_BYTES_MAX || header->arena_bytes % page_bytes)
		return "the arena's size is out of range or not page-aligned";
	if (!header->boundary_count || !header->layout_id)
		return "the layout has no boundaries or no id";
	if (header->cut_count >= header->boundary_count)
		return "every boundary of the layout is a cut";
	if (header->heap_node < -1 || header->heap_node > NODE_MAX)
		return "the heap's node is out of range";
	end = table_end(header->slots_offset, header->slot_count, sizeof(struct sentinel_slot), end, bytes);
	if (end)
		end = table_end(header->cuts_offset, header->cut_count, sizeof(uint32_t), end, bytes);
	if (end)
		end = table_end(header->regions_offset, header->region_count, sizeof(struct sentinel_region),
				end, bytes);
	if (end)
		end = table_end(header->waits_offset, header->boundary_count, sizeof(struct sentinel_wait),
				end, bytes);
	if (end && header->part_count)
		end = table_end(header->parts_offset, header->part_count, sizeof(struct sentinel_part), end,
				bytes);
	if (end && header->access_count)
		end = table_end(header->accesses_offset, header->access_count, sizeof(struct sentinel_access),
				end, bytes);
	if (end && header->huge_count)
		end = table_end(header->huge_offset, header->huge_count, sizeof(struct sentinel_huge), end,
				bytes);
	if (end && header->move_count)
		end = table_end(header->moves_offset, header->move_count, sizeof(struct sentinel_move), end,
				bytes);
	if (!end)
		return "a table of the layout lies outside its file or is not aligned";
	layout->slots = (const void *)(base + header->slots_offset);
	layout->cuts = (const void *)(base + header->cuts_offset);
	layout->regions = (const void *)(base + header->regions_offset);
	layout->waits = (const void *)(base + header->waits_offset);
	layout->parts = header->part_count ? (const void *)(base + header->parts_offset) : NULL;
	layout->accesses = header->access_count ? (const void *)(base + header->accesses_offset) : NULL;
	layout->huge = header->huge_count ? (const void *)(base + header->huge_offset) : NULL;
	layout->moves = header->move_count ? (const void *)(base + header->moves_offset) : NULL;
	if (header->flags & ~(uint32_t)SENTINEL_LAYOUT_EMULATED)
		return "the layout has unknown flags";
	if (header->fast_pages > ARENA_BYTES_MAX / page_bytes)
		return "the fast node's size is out of range";
	problem = check_slots(layout, page_bytes);
	if (!problem)
		problem = check_parts(layout, page_bytes);
	if (!problem)
		problem = check_rest(layout, page_bytes);
	if (!problem)
		problem = check_huge(layout, page_bytes);
	if (!problem)
		problem = check_moves(layout, page_bytes);
	return problem ? problem : check_accesses(layout, page_bytes);
}

const char *layout_read(struct layout *layout, int fd, uint64_t page_bytes)
{
	uint64_t bytes = 0;
	const char *problem;

	memset(layout, 0, sizeof(*layout));
	layout->copy = copy_of(fd, &bytes);
	if (!layout->copy)
		return "the layout cannot be read";
	layout->header = layout->copy;
	problem = check(layout, bytes, page_bytes);
	if (problem)
		layout_free(layout);
	return problem;
}

const struct sentinel_part *layout_parts(const struct layout *layout, uint32_t slot, uint32_t *count)
{
	uint32_t low = 0, high = layout->header->part_count, end;

	*count = 0;
	if (!(layout->slots[slot].flags & SENTINEL_SLOT_DROP_PARTS))
		return NULL;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (layout->parts[middle].slot < slot)
			low = middle + 1;
		else
			high = middle;
	}
	for (end = low; end < layout->header->part_count && layout->parts[end].slot == slot; end++)
		;
	*count = end - low;
	return *count ? &layout->parts[low] : NULL;
}

bool layout_has_moves(const struct layout *layout, uint32_t boundary)
{
	uint32_t low = 0, high = layout->header->move_count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (layout->moves[middle].boundary < boundary)
			low = middle + 1;
		else
			high = middle;
	}
	return low < layout->header->move_count && layout->moves[low].boundary == boundary;
}

void layout_free(struct layout *layout)
{
	free(layout->copy);
	memset(layout, 0, sizeof(*layout));
}
