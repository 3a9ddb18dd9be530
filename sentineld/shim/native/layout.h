/* SPDX-License-Identifier: Apache-2.0 */
/* A layout from the daemon: untrusted, so it is copied out of its memfd and checked before use. */
#ifndef SENTINELD_SHIM_LAYOUT_H
#define SENTINELD_SHIM_LAYOUT_H

#include <stdbool.h>

#include "protocol.h"

#define LAYOUT_BYTES_MAX (1ull << 30)

struct layout {
	/* the pointers below point into this copy; parts, accesses, huge and moves are NULL if empty */
	void *copy;
	const struct sentinel_layout *header;
	const struct sentinel_slot *slots;
	const uint32_t *cuts;
	const struct sentinel_region *regions;
	const struct sentinel_wait *waits;
	const struct sentinel_part *parts;
	const struct sentinel_access *accesses;
	const struct sentinel_huge *huge;
	const struct sentinel_move *moves;
};

/* Whether the layout is for emulated or paged tiers. If it is, no memory is bound to nodes. */
static inline bool layout_emulated(const struct sentinel_layout *header)
{
	return header->flags & SENTINEL_LAYOUT_EMULATED;
}

/* Copy and check the layout in fd. Returns NULL, or a description of the problem (a static string). */
const char *layout_read(struct layout *layout, int fd, uint64_t page_bytes);

/* The parts of a slot with SENTINEL_SLOT_DROP_PARTS, and their count; NULL and 0 for other slots. */
const struct sentinel_part *layout_parts(const struct layout *layout, uint32_t slot, uint32_t *count);

/* Whether the layout has moves that begin at the boundary. */
bool layout_has_moves(const struct layout *layout, uint32_t boundary);

/* Whether an allocation of this size fits the slot. */
static inline bool slot_fits(const struct sentinel_slot *slot, uint64_t bytes)
{
	return bytes <= slot->bytes &&
	       slot->bytes - bytes <= slot->slack * (uint64_t)SENTINEL_TENSOR_BYTES_MIN;
}

void layout_free(struct layout *layout);

#endif
