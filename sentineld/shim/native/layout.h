/* SPDX-License-Identifier: Apache-2.0 */
/* A layout from the daemon, copied out of its memfd and checked: nothing in it is trusted before. */
#ifndef SENTINELD_SHIM_LAYOUT_H
#define SENTINELD_SHIM_LAYOUT_H

#include <stdbool.h>

#include "protocol.h"

#define LAYOUT_BYTES_MAX (1ull << 30)

struct layout {
	void *copy; /* owns everything below */
	const struct sentinel_layout *header;
	const struct sentinel_slot *slots;
	const uint32_t *cuts;
	const struct sentinel_region *regions;
	const struct sentinel_wait *waits;
	const struct sentinel_part *parts;
	const struct sentinel_access *accesses;
	const struct sentinel_huge *huge;
};

/* Its nodes are only thought of: nothing is bound to them. */
static inline bool layout_emulated(const struct sentinel_layout *header)
{
	return header->flags & SENTINEL_LAYOUT_EMULATED;
}

/* NULL, or what is wrong with the layout (a static string); then nothing is held. */
const char *layout_read(struct layout *layout, int fd, uint64_t page_bytes);

/* What slot gives back when its tensor dies, if that is not all of it or nothing; count: how many. */
const struct sentinel_part *layout_parts(const struct layout *layout, uint32_t slot, uint32_t *count);

void layout_free(struct layout *layout);

#endif
