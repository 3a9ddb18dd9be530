/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page heap: while it has room, it holds every tensor of at least
 * SENTINEL_TENSOR_BYTES_MIN bytes that has no place in the arena. The heap is one
 * reservation of address space that is never unmapped, divided into blocks of whole
 * pages. Allocation is best fit; free neighbours are merged. The caller holds the
 * shim's lock; a thread that frees a tensor may read the tensor's block without the
 * lock.
 */
#ifndef SENTINELD_SHIM_HEAP_H
#define SENTINELD_SHIM_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Free lists (bins): one for each size below 32 pages. From 32 pages on, the sizes between two
   powers of two are divided among 16 lists. */
#define HEAP_EXACT_BINS 32
#define HEAP_SPLITS 16
#define HEAP_BINS (HEAP_EXACT_BINS + 27 * HEAP_SPLITS)
#define HEAP_NONE 0u /* block 0 is never used */

struct heap_birth {
	uint64_t bytes; /* requested size */
	uint32_t step; /* low 32 bits of the step's number */
	uint32_t cursor; /* ~0: none; the step's owner (see shim.h) did not allocate the block */
};

struct heap_block {
	uint32_t page; /* first page */
	uint32_t pages;
	uint32_t before; /* the adjacent block at lower addresses */
	uint32_t after; /* the adjacent block at higher addresses */
	bool live;
	uint8_t placement; /* enum sentinel_placement; 0 if the block is free */
	uint32_t next; /* free block: the next in its bin; spare entry: the next spare entry */
	uint32_t prev; /* free block: the previous in its bin */
	struct heap_birth birth; /* valid if the block is live */
};

struct heap {
	char *base;
	uint64_t bytes;
	unsigned page_shift;
	uint32_t pages;
	uint32_t request_pages_max;
	uint32_t *block_at; /* by page: the live block that begins at the page */
	struct heap_block *blocks;
	uint32_t blocks_used; /* number of entries of `blocks` that have ever been used */
	uint32_t spare; /* list of the entries that merge() has freed for reuse */
	uint32_t first; /* the block that begins at page 0 */
	uint32_t bins[HEAP_BINS]; /* first free block of each bin */
	uint64_t bin_map[(HEAP_BINS + 63) / 64]; /* a bit per bin, set if the bin is not empty */
	uint64_t live_pages;
	uint32_t top_page; /* first page above all pages that were ever allocated */
};

/* Reserve `bytes` of address space, at most 2^32 - 3 pages; heap_take() will refuse requests above
   request_bytes_max. Returns 0 or -errno. */
int heap_init(struct heap *heap, uint64_t bytes, uint64_t request_bytes_max);

static inline bool heap_owns(const struct heap *heap, const void *address)
{
	return (uintptr_t)address - (uintptr_t)heap->base < heap->bytes;
}

/* Allocate birth->bytes, page-aligned; NULL if no free block is large enough. */
void *heap_take(struct heap *heap, const struct heap_birth *birth);

/* The live block that begins at address, or NULL. */
struct heap_block *heap_find(struct heap *heap, const void *address);

/* Free a live block. */
void heap_give(struct heap *heap, struct heap_block *block);

/* Drop the pages of all free blocks. */
void heap_drop_free(struct heap *heap);

static inline void *heap_address(const struct heap *heap, const struct heap_block *block)
{
	return heap->base + ((uint64_t)block->page << heap->page_shift);
}

#endif
