/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planned arena: slot n of the layout lies at a fixed offset, and a bitmap
 * of live pages proves at each birth that nobody lives there. Whatever the plan
 * says, two live tensors never share a page. The caller holds the lock, except
 * for arena_find and arena_drop, which the tensor's owner may call without it.
 */
#ifndef SENTINELD_SHIM_ARENA_H
#define SENTINELD_SHIM_ARENA_H

#include <stdbool.h>

#include "layout.h"

struct arena {
	struct arena *older; /* still holding tensors of a former layout */
	struct layout layout;
	char *base;
	uint64_t bytes;
	unsigned page_shift;
	uint64_t *live_map; /* bit by page */
	uint32_t *slot_at; /* by page: 1 + slot of the live tensor that begins there, 0: none */
	uint32_t *birth_step; /* by slot: low 32 bits of the step */
	uint64_t live_tensors;
	uint64_t live_pages;
};

/* Map the arena, choose where it may be huge pages, and apply its regions' policies; takes the layout over on success. */
const char *arena_new(struct arena **arena, struct layout *layout);

/* Unmap an arena in which nothing lives. */
void arena_delete(struct arena *arena);

static inline bool arena_owns(const struct arena *arena, const void *address)
{
	return (uintptr_t)address - (uintptr_t)arena->base < arena->bytes;
}

/* The planned place of allocation `slot`, now live; NULL if a live tensor is in the way. */
void *arena_take(struct arena *arena, uint32_t slot, uint32_t step);

/* Have the pages of a newborn tensor made if its slot asks for it; where the kernel can't, they come
   one by one as they are touched. */
void arena_populate(const struct arena *arena, uint32_t slot);

/* The slot of the live tensor at address, or -1. */
int64_t arena_find(const struct arena *arena, const void *address);

/* Give the pages of a live, dying tensor back to the kernel, those that its slot says. */
void arena_drop(struct arena *arena, uint32_t slot);

void arena_give(struct arena *arena, uint32_t slot);

/* mbind [address, address + bytes) to prefer node; -1: the default policy. 0 or -errno. */
int memory_prefer(void *address, uint64_t bytes, int32_t node);

#endif
