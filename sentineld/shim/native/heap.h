/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page heap: every tensor of at least SENTINEL_TENSOR_BYTES_MIN that no
 * plan places. One reservation, never unmapped; whole pages, best fit,
 * neighbours merge. The caller holds the lock; the block of a live pointer may
 * be read by the pointer's owner without it.
 */
#ifndef SENTINELD_SHIM_HEAP_H
#define SENTINELD_SHIM_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HEAP_EXACT_BINS 32
#define HEAP_SPLITS 16
#define HEAP_BINS (HEAP_EXACT_BINS + 27 * HEAP_SPLITS)
#define HEAP_NONE 0u /* block 0 is never used */

struct heap_birth {
	uint64_t bytes; /* as asked for */
	uint32_t step; /* low 32 bits of the step's number */
	uint32_t cursor; /* ~0: not in the step's sequence */
};

struct heap_block {
	uint32_t page;
	uint32_t pages;
	uint32_t before; /* neighbours by address */
	uint32_t after;
	bool live;
	uint32_t next; /* free: in its bin; unused: the next spare block */
	uint32_t prev;
	struct heap_birth birth;
};

struct heap {
	char *base;
	uint64_t bytes;
	unsigned page_shift;
	uint32_t pages;
	uint32_t request_pages_max;
	uint32_t *block_at; /* by page: the block that begins there */
	struct heap_block *blocks;
	uint32_t blocks_used;
	uint32_t spare;
	uint32_t first; /* block at page 0 */
	uint32_t bins[HEAP_BINS];
	uint64_t bin_map[(HEAP_BINS + 63) / 64];
	uint64_t live_pages;
	uint32_t top_page; /* pages at or above it were never handed out */
};

/* Reserve `bytes` of address space; requests above request_bytes_max are refused. 0 or -errno. */
int heap_init(struct heap *heap, uint64_t bytes, uint64_t request_bytes_max);

static inline bool heap_owns(const struct heap *heap, const void *address)
{
	return (uintptr_t)address - (uintptr_t)heap->base < heap->bytes;
}

/* Page-aligned memory, or NULL if no room is left. */
void *heap_take(struct heap *heap, const struct heap_birth *birth);

/* The live block that begins at address, or NULL. */
struct heap_block *heap_find(struct heap *heap, const void *address);

void heap_give(struct heap *heap, struct heap_block *block);

/* Give the pages of all free blocks back to the kernel. */
void heap_drop_free(struct heap *heap);

static inline void *heap_address(const struct heap *heap, const struct heap_block *block)
{
	return heap->base + ((uint64_t)block->page << heap->page_shift);
}

#endif
