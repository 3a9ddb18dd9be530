// SPDX-License-Identifier: Apache-2.0
/*
 * Interposes c10::alloc_cpu and c10::free_cpu. Because this library is loaded
 * with RTLD_GLOBAL before torch, the dynamic linker binds all calls of these
 * two functions to this library instead of libc10. malloc is not interposed.
 * Requests that the shim does not serve go to libc10, which also raises
 * allocation errors.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <link.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "arenas.h"
#include "paged_memory.h"
#include "place.h"
#include "whole_pages.h"

#define ALLOC_SYMBOL "_ZN3c109alloc_cpuEm"
#define FREE_SYMBOL "_ZN3c108free_cpuEPv"

API void *_ZN3c109alloc_cpuEm(size_t bytes);
API void _ZN3c108free_cpuEPv(void *address);

typedef void *(*alloc_function)(size_t);
typedef void (*free_function)(void *);

static _Atomic alloc_function real_alloc;
static _Atomic free_function real_free;

static int find_c10(struct dl_phdr_info *info, size_t size, void *found)
{
	const char *name = strrchr(info->dlpi_name, '/');

	(void)size;
	name = name ? name + 1 : info->dlpi_name;
	if (strncmp(name, "libc10.so", strlen("libc10.so")))
		return 0;
	*(void **)found = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
	return 1;
}

/*
 * Stores the address of libc10's function `symbol` in *function. Only libraries that link
 * libc10 call the interposed functions, so libc10 is already loaded when resolve() runs.
 */
static void resolve(const char *symbol, void *function)
{
	void *c10 = NULL, *found;

	dl_iterate_phdr(find_c10, &c10);
	found = c10 ? dlsym(c10, symbol) : NULL;
	if (!found)
		abort();
	memcpy(function, &found, sizeof(found));
}

/* Count the live bytes of tensors that libc10 has allocated. malloc_usable_size returns the same
   number at a tensor's birth and at its death, so exactly the added bytes are subtracted. */
static void account(void *address, bool birth)
{
	uint64_t bytes, *word;

	if (!address || !shim.control || shim.child)
		return;
	bytes = malloc_usable_size(address);
	/* malloc can make a small allocation up to 63 bytes larger than requested, so this limit is
	   64 bytes above SENTINEL_TENSOR_BYTES_MIN. */
	word = bytes < SENTINEL_TENSOR_BYTES_MIN + 64 ? &shim.control->small_bytes
						      : &shim.control->fallback_bytes;
	if (birth)
		__atomic_fetch_add(word, bytes, __ATOMIC_RELAXED);
	else
		__atomic_fetch_sub(word, bytes, __ATOMIC_RELAXED);
}

static void publish_heap(void)
{
	publish(heap_live, shim.heap.live_pages << shim.heap.page_shift);
	publish(heap_used, (uint64_t)shim.heap.top_page << shim.heap.page_shift);
}

/* The planned address of the next allocation by the step's owner (see shim.h); NULL: the heap
   serves this allocation. Needs the lock. */
static void *replay(uint64_t bytes)
{
	const struct layout *layout = &shim.arena->layout;
	const struct sentinel_slot *slot;
	void *address;

	skip_optional(bytes);
	slot = &layout->slots[shim.cursor];
	if (shim.cursor >= layout->header->slot_count || !slot_fits(slot, bytes)) {
		diverge();
		return NULL;
	}
	emulation_slot_sized(shim.emulation, shim.cursor, bytes);
	if (!(slot->flags & SENTINEL_SLOT_PLANNED))
		return NULL;
	address = arena_take(shim.arena, shim.cursor, bytes, (uint32_t)shim.step);
	if (!address) {
		diverge();
		return NULL;
	}
	residency_arrive();
	emulation_slot_born(shim.emulation, shim.cursor);
	return address;
}

static uint64_t heap_page(const void *address)
{
	return ((uintptr_t)address - (uintptr_t)shim.heap.base) >> shim.heap.page_shift;
}

/* Allocate a tensor in the arena or the heap. Returns NULL if neither has room. */
static void *tensor_alloc(uint64_t bytes)
{
	struct heap_birth birth = {.bytes = bytes, .cursor = NOT_IN_SEQUENCE};
	uint8_t placement = placement_of_births();
	const struct arena *planned = NULL;
	void *address = NULL;
	bool owner;

	pthread_mutex_lock(&shim.lock);
	if (is_owner())
		boundary_before_alloc();
	owner = is_owner();
	birth.step = (uint32_t)shim.step;
	if (owner && shim.mode == SENTINEL_MODE_REPLAY)
		address = replay(bytes);
	if (owner)
		birth.cursor = shim.cursor;
	if (address) {
		planned = shim.arena;
	} else {
		address = heap_take(&shim.heap, &birth);
		if (address) {
			residency_arrive();
			emulation_heap_born(shim.emulation, heap_page(address),
					    whole_pages(bytes, shim.heap.page_shift));
		}
		publish_heap();
	}
	if (shim.recording)
		ring_put(SENTINEL_EVENT_ALLOC, owner ? SENTINEL_ALLOC_STEP : SENTINEL_ALLOC_OTHER,
			 (uintptr_t)address, bytes, birth.cursor, (uint16_t)shim.layer);
	if (unlikely(placement) && address) {
		placement_record(placement, address, &birth);
		if (!planned)
			placement_set(heap_find(&shim.heap, address), placement);
	}
	if (owner)
		publish(cursor, ++shim.cursor);
	pthread_mutex_unlock(&shim.lock);
	/* Safe without the lock: an arena is not deleted while it has live tensors. */
	if (address && !paging_born(address, bytes) && planned)
		arena_populate(planned, birth.cursor);
	return address;
}

/* Write a FREE record if the step is recorded. Needs the lock. */
static void record_free(const void *address, const struct heap_birth *birth)
{
	bool in_step = birth->step == (uint32_t)shim.step;

	if (shim.recording)
		ring_put(SENTINEL_EVENT_FREE, 0, (uintptr_t)address, birth->bytes,
			 in_step ? birth->cursor : NOT_IN_SEQUENCE, (uint16_t)shim.layer);
}

static void heap_free(void *address)
{
	struct heap_block *block = heap_find(&shim.heap, address);
	bool drop = shim.drop_frees || paging_runs();

	if (!block)
		return;
	/* No lock is needed: until heap_give(), no other tensor can be born in the block. */
	if (drop)
		memory_drop(address, (uint64_t)block->pages << shim.heap.page_shift);
	pthread_mutex_lock(&shim.lock);
	record_free(address, &block->birth);
	if (drop)
		emulation_heap_dropped(shim.emulation, block->page, block->pages);
	placement_set(block, SENTINEL_PLACEMENT_AUTO);
	heap_give(&shim.heap, block);
	publish_heap();
	pthread_mutex_unlock(&shim.lock);
}

/* Free a tensor that lies in an arena. Returns false if no arena contains the address. */
static bool arena_free(void *address)
{
	struct heap_birth birth;
	struct arena *arena;
	int64_t slot;
	bool retired;

	pthread_mutex_lock(&shim.lock);
	arena = arena_of(address);
	slot = arena ? arena_find(arena, address) : -1;
	retired = arena != shim.arena;
	pthread_mutex_unlock(&shim.lock);
	if (!arena)
		return false;
	if (slot < 0)
		return true;
	/* In a former layout's arena, no tensor is born any more, so drop all pages of the slot. */
	arena_drop(arena, (uint32_t)slot, retired);
	birth = (struct heap_birth){
		.bytes = arena->born_bytes[slot],
		.step = arena->birth_step[slot],
		.cursor = (uint32_t)slot,
	};
	pthread_mutex_lock(&shim.lock);
	record_free(address, &birth);
	if (arena == shim.arena)
		emulation_slot_dropped(shim.emulation, (uint32_t)slot);
	else if (!retired)
		arena_drop(arena, (uint32_t)slot, true); /* the layout was replaced meanwhile */
	arena_give(arena, (uint32_t)slot);
	pthread_mutex_unlock(&shim.lock);
	return true;
}

/* In a forked child: whether the tensor lies in the heap or an arena, both of which the child has
   inherited from its parent. The child never frees such a tensor. */
static bool inherited(const void *address)
{
	return heap_owns(&shim.heap, address) || arena_of(address);
}

API void *_ZN3c109alloc_cpuEm(size_t bytes)
{
	alloc_function function;
	void *address;

	if (bytes >= SENTINEL_TENSOR_BYTES_MIN && shim.on) {
		address = tensor_alloc(bytes);
		if (address)
			return address;
	}
	/* Do not call real_alloc directly: gcc would load its value non-atomically. */
	function = atomic_load(&real_alloc);
	if (unlikely(!function)) {
		resolve(ALLOC_SYMBOL, &function);
		atomic_store(&real_alloc, function);
	}
	address = function(bytes);
	account(address, true);
	return address;
}

API void _ZN3c108free_cpuEPv(void *address)
{
	free_function function;

	if (!((uintptr_t)address & (SENTINEL_TENSOR_BYTES_MIN - 1)) && address && shim.control) {
		if (unlikely(shim.child)) {
			if (inherited(address))
				return;
		} else if (heap_owns(&shim.heap, address)) {
			heap_free(address);
			return;
		} else if (arena_free(address)) {
			return;
		}
	}
	function = atomic_load(&real_free);
	if (unlikely(!function)) {
		resolve(FREE_SYMBOL, &function);
		atomic_store(&real_free, function);
	}
	account(address, false);
	function(address);
}
