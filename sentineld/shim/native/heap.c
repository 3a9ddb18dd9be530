// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "heap.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "paged_memory.h"
#include "whole_pages.h"

/* Maximum number of blocks of one bin that are searched for the best fit. */
#define SCAN_MAX 32

static unsigned bin_of(uint32_t pages)
{
	unsigned order;

	if (pages < HEAP_EXACT_BINS)
		return pages;
	order = 31 - (unsigned)__builtin_clz(pages);
	return HEAP_EXACT_BINS + (order - 5) * HEAP_SPLITS + ((pages >> (order - 4)) & (HEAP_SPLITS - 1));
}

static void bin_insert(struct heap *heap, uint32_t index)
{
	struct heap_block *block = &heap->blocks[index];
	unsigned bin = bin_of(block->pages);

	block->live = false;
	block->prev = HEAP_NONE;
	block->next = heap->bins[bin];
	if (block->next != HEAP_NONE)
		heap->blocks[block->next].prev = index;
	heap->bins[bin] = index;
	heap->bin_map[bin / 64] |= 1ull << (bin % 64);
}

static void bin_remove(struct heap *heap, uint32_t index)
{
	struct heap_block *block = &heap->blocks[index];
	unsigned bin = bin_of(block->pages);

	if (block->next != HEAP_NONE)
		heap->blocks[block->next].prev = block->prev;
	if (block->prev != HEAP_NONE)
		heap->blocks[block->prev].next = block->next;
	else
		heap->bins[bin] = block->next;
	if (heap->bins[bin] == HEAP_NONE)
		heap->bin_map[bin / 64] &= ~(1ull << (bin % 64));
}

/* The first non-empty bin from `bin` on; HEAP_BINS if there is none. */
static unsigned bin_next(const struct heap *heap, unsigned bin)
{
	unsigned word = bin / 64;
	uint64_t bits;

	if (bin >= HEAP_BINS)
		return HEAP_BINS;
	bits = heap->bin_map[word] & (~0ull << (bin % 64));
	while (!bits && ++word < sizeof(heap->bin_map) / sizeof(heap->bin_map[0]))
		bits = heap->bin_map[word];
	return bits ? word * 64 + (unsigned)__builtin_ctzll(bits) : HEAP_BINS;
}

/* The smallest sufficient block among the bin's first SCAN_MAX blocks, or HEAP_NONE. If several
   blocks have this size, returns the one at the lowest address. */
static uint32_t bin_best(const struct heap *heap, unsigned bin, uint32_t pages)
{
	uint32_t best = HEAP_NONE, index = heap->bins[bin];

	for (int seen = 0; index != HEAP_NONE && seen < SCAN_MAX; seen++) {
		const struct heap_block *block = &heap->blocks[index], *champion = &heap->blocks[best];

		if (block->pages >= pages &&
		    (best == HEAP_NONE || block->pages < champion->pages ||
		     (block->pages == champion->pages && block->page < champion->page)))
			best = index;
		index = block->next;
	}
	return best;
}

static uint32_t block_new(struct heap *heap)
{
	uint32_t index = heap->spare;

	if (index != HEAP_NONE)
		heap->spare = heap->blocks[index].next;
	else
		index = ++heap->blocks_used;
	return index;
}

static void *reserve(uint64_t bytes)
{
	return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

int heap_init(struct heap *heap, uint64_t bytes, uint64_t request_bytes_max)
{
	unsigned shift = (unsigned)__builtin_ctzl((unsigned long)sysconf(_SC_PAGESIZE));
	uint64_t pages = bytes >> shift, largest = request_bytes_max >> shift;
	void *base, *block_at, *blocks;
	uint32_t whole;

	if (!pages || pages > UINT32_MAX - 2)
		return -EINVAL;
	base = reserve(pages << shift);
	if (base == MAP_FAILED)
		return -errno;
	/* Room for one block per page, the worst case; untouched entries take no memory. */
	block_at = reserve(pages * sizeof(*heap->block_at));
	blocks = reserve((pages + 2) * sizeof(*heap->blocks));
	if (block_at == MAP_FAILED || blocks == MAP_FAILED) {
		int error = errno;

		munmap(base, pages << shift);
		if (block_at != MAP_FAILED)
			munmap(block_at, pages * sizeof(*heap->block_at));
		if (blocks != MAP_FAILED)
			munmap(blocks, (pages + 2) * sizeof(*heap->blocks));
		return -error;
	}
	/* Tensors are placed and moved in units of base pages, so use no huge pages. */
	madvise(base, pages << shift, MADV_NOHUGEPAGE);
	heap->base = base;
	heap->bytes = pages << shift;
	heap->page_shift = shift;
	heap->pages = (uint32_t)pages;
	heap->request_pages_max = (uint32_t)(largest < pages ? largest : pages);
	heap->block_at = block_at;
	heap->blocks = blocks;
	whole = block_new(heap);
	heap->blocks[whole] = (struct heap_block){.page = 0, .pages = (uint32_t)pages};
	heap->first = whole;
	bin_insert(heap, whole);
	return 0;
}

/* Shorten the block to `pages` and put the remaining pages into a new free block. */
static void split(struct heap *heap, uint32_t index, uint32_t pages)
{
	struct heap_block *block = &heap->blocks[index];
	uint32_t rest = block_new(heap);

	heap->blocks[rest] = (struct heap_block){
		.page = block->page + pages,
		.pages = block->pages - pages,
		.before = index,
		.after = block->after,
	};
	if (block->after != HEAP_NONE)
		heap->blocks[block->after].before = rest;
	block->after = rest;
	block->pages = pages;
	bin_insert(heap, rest);
}

void *heap_take(struct heap *heap, const struct heap_birth *birth)
{
	uint64_t wanted = whole_pages(birth->bytes, heap->page_shift);
	uint32_t pages, index = HEAP_NONE;
	struct heap_block *block;
	unsigned bin;

	if (!wanted || wanted > heap->request_pages_max || birth->bytes > heap->bytes)
		return NULL;
	pages = (uint32_t)wanted;
	for (bin = bin_next(heap, bin_of(pages)); bin < HEAP_BINS; bin = bin_next(heap, bin + 1)) {
		index = bin_best(heap, bin, pages);
		if (index != HEAP_NONE)
			break;
	}
	if (index == HEAP_NONE)
		return NULL;
	bin_remove(heap, index);
	block = &heap->blocks[index];
	if (block->pages > pages)
		split(heap, index, pages);
	block->live = true;
	block->placement = 0;
	block->birth = *birth;
	heap->block_at[block->page] = index;
	heap->live_pages += pages;
	if (block->page + pages > heap->top_page)
		heap->top_page = block->page + pages;
	return heap_address(heap, block);
}

struct heap_block *heap_find(struct heap *heap, const void *address)
{
	uint64_t page = ((uintptr_t)address - (uintptr_t)heap->base) >> heap->page_shift;
	uint32_t index;

	if (!heap_owns(heap, address))
		return NULL;
	index = heap->block_at[page];
	if (index == HEAP_NONE || !heap->blocks[index].live || heap->blocks[index].page != page)
		return NULL;
	return &heap->blocks[index];
}

/* Merge block `next` into block `index`, the adjacent block at lower addresses. Both are free and
   in no bin. */
static void merge(struct heap *heap, uint32_t index, uint32_t next)
{
	struct heap_block *low = &heap->blocks[index], *high = &heap->blocks[next];

	low->pages += high->pages;
	low->after = high->after;
	if (high->after != HEAP_NONE)
		heap->blocks[high->after].before = index;
	heap->block_at[high->page] = HEAP_NONE;
	high->next = heap->spare;
	high->live = false;
	heap->spare = next;
}

void heap_give(struct heap *heap, struct heap_block *block)
{
	uint32_t index = (uint32_t)(block - heap->blocks);
	uint32_t before = block->before, after = block->after;

	block->live = false;
	heap->block_at[block->page] = HEAP_NONE;
	heap->live_pages -= block->pages;
	if (after != HEAP_NONE && !heap->blocks[after].live) {
		bin_remove(heap, after);
		merge(heap, index, after);
	}
	if (before != HEAP_NONE && !heap->blocks[before].live) {
		bin_remove(heap, before);
		merge(heap, before, index);
		index = before;
	}
	bin_insert(heap, index);
}

void heap_drop_free(struct heap *heap)
{
	for (uint32_t index = heap->first; index != HEAP_NONE; index = heap->blocks[index].after) {
		const struct heap_block *block = &heap->blocks[index];
		uint32_t end = block->page + block->pages;

		if (end > heap->top_page)
			end = heap->top_page;
		if (!block->live && end > block->page)
			memory_drop(heap_address(heap, block), (uint64_t)(end - block->page)
								       << heap->page_shift);
	}
}
