// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "emulate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define MAPS_OFFSET 4096
#define FAST 1 /* what a page on node 0 is in a map */
#define SLOW 2 /* and one on node 1 */
#define PAY_NS_MIN 100000
#define SPIN_NS 80000 /* a sleep ends up to so much later than asked for */
/* What a late end of a sleep is paid for already. More than that is no sleep's fault: the process
   was stopped, or another one ran. */
#define CREDIT_NS_MAX 200000

static uint64_t monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static uint8_t entry(int32_t node)
{
	return node < 0 || node > 254 ? FAST : (uint8_t)(node + 1);
}

/* What a page becomes at birth; *end: up to which offset the same holds. */
static uint8_t birth_at(const struct layout *layout, uint64_t offset, uint64_t *end)
{
	*end = UINT64_MAX;
	for (uint32_t i = 0; i < layout->header->region_count; i++) {
		const struct sentinel_region *region = &layout->regions[i];

		if (offset - region->offset < region->bytes) {
			*end = region->offset + region->bytes;
			return entry(region->node);
		}
	}
	return FAST;
}

/* A slot may lie across two regions. */
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
	uint64_t heap_offset = MAPS_OFFSET + ((arena_pages + 7) & ~7ull);
	uint64_t bytes = (heap_offset + heap->pages + 4095) & ~4095ull;
	struct rlimit limit;
	void *base;

	/* ftruncate beyond it would not fail but raise SIGXFSZ */
	if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur < bytes)
		return false;
	emulation->fd = memfd_create("sentinel-residency", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (emulation->fd < 0 || ftruncate(emulation->fd, (off_t)bytes))
		return false;
	/* The daemon maps it, too: its size must hold for good. */
	if (fcntl(emulation->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return false;
	base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, emulation->fd, 0);
	if (base == MAP_FAILED)
		return false;
	emulation->segment = base;
	emulation->bytes = bytes;
	emulation->arena = (uint8_t *)base + MAPS_OFFSET;
	emulation->heap = (uint8_t *)base + heap_offset;
	*emulation->segment = (struct sentinel_residency){
		.magic = SENTINEL_RESIDENCY_MAGIC,
		.version = SENTINEL_SHIM_VERSION,
		.page_bytes = 1u << heap->page_shift,
		.layout_id = layout->header->layout_id,
		.arena_offset = MAPS_OFFSET,
		.arena_pages = arena_pages,
		.heap_offset = heap_offset,
		.heap_pages = heap->pages,
	};
	return true;
}

/* Pages of node 0 that are free. The daemon's word may be anything. */
static uint64_t fast_room(const struct emulation *emulation)
{
	uint64_t moved = (uint64_t)__atomic_load_n(&emulation->segment->moved_fast, __ATOMIC_RELAXED);
	uint64_t flying = __atomic_load_n(&emulation->segment->flying_fast, __ATOMIC_RELAXED);
	int64_t room = (int64_t)(emulation->fast_limit - emulation->fast_own - moved - flying);

	if (!emulation->fast_limit)
		return UINT64_MAX;
	return room > 0 ? (uint64_t)room : 0;
}

/* What the daemon must leave room for. */
static void tell_own(const struct emulation *emulation)
{
	__atomic_store_n(&emulation->segment->fast_own, (int64_t)emulation->fast_own, __ATOMIC_RELAXED);
}

/*
 * Live blocks stay where they were; before the first emulated layout all memory was fast. What a
 * limited fast node has no pages for is slow, the highest addresses first, and so is what was born
 * in the step that ended: its like will be born in the arena, and finds the room that is left.
 */
static void take_over_heap(struct emulation *emulation, const struct heap *heap,
			   const struct emulation *before, uint32_t step)
{
	for (uint32_t i = heap->first; i != HEAP_NONE; i = heap->blocks[i].after) {
		const struct heap_block *block = &heap->blocks[i];
		uint8_t *map = emulation->heap + block->page;
		uint64_t room;

		if (!block->live)
			continue;
		if (before)
			memcpy(map, before->heap + block->page, block->pages);
		else
			memset(map, FAST, block->pages);
		room = emulation->fast_limit && block->birth.step == step ? 0 : fast_room(emulation);
		for (uint32_t page = 0; page < block->pages; page++) {
			if (map[page] != FAST)
				continue;
			if (room) {
				room--;
				emulation->fast_own++;
			} else {
				map[page] = SLOW;
			}
		}
	}
}

const char *emulation_new(struct emulation **out, const struct layout *layout, const struct heap *heap,
			  const struct emulation *before, uint32_t step)
{
	const struct sentinel_layout *header = layout->header;
	struct emulation *emulation = calloc(1, sizeof(*emulation));
	uint32_t row = 0;

	if (!emulation)
		return "no memory for the emulated tiers";
	emulation->fd = -1;
	emulation->page_shift = heap->page_shift;
	emulation->layout = layout;
	emulation->fast_limit = header->fast_pages;
	emulation->heap_birth = entry(header->heap_node);
	emulation->slot_birth = calloc((uint64_t)header->slot_count + 1, sizeof(*emulation->slot_birth));
	emulation->first_access = calloc((uint64_t)header->boundary_count + 1, sizeof(uint32_t));
	if (!emulation->slot_birth || !emulation->first_access || !make_segment(emulation, layout, heap)) {
		emulation_delete(emulation);
		return "no memory for the emulated tiers' map, or a limit on the size of files (ulimit -f)";
	}
	for (uint32_t slot = 0; slot < header->slot_count; slot++)
		emulation->slot_birth[slot] = slot_birth(layout, &layout->slots[slot], heap->page_shift);
	for (uint32_t stretch = 0; stretch <= header->boundary_count; stretch++) {
		while (row < header->access_count && layout->accesses[row].stretch < stretch)
			row++;
		emulation->first_access[stretch] = row;
	}
	take_over_heap(emulation, heap, before, step);
	emulation->segment->fast_limit = emulation->fast_limit;
	tell_own(emulation);
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
	free(emulation->first_access);
	free(emulation);
}

/* First touches: pages that are there stay where they are. All of them at once: here a birth counts
   as a touch. */
static void born(struct emulation *emulation, uint8_t *map, uint64_t pages, uint8_t birth)
{
	uint64_t room = birth == FAST ? fast_room(emulation) : 0;

	for (uint64_t i = 0; i < pages; i++) {
		if (map[i])
			continue;
		map[i] = birth;
		if (birth != FAST)
			continue;
		if (room) {
			room--;
			emulation->fast_own++;
		} else {
			map[i] = SLOW;
		}
	}
	tell_own(emulation);
}

static void dropped(struct emulation *emulation, uint8_t *map, uint64_t pages)
{
	for (uint64_t i = 0; i < pages; i++)
		emulation->fast_own -= map[i] == FAST;
	memset(map, 0, pages);
	tell_own(emulation);
}

static uint64_t slot_pages(const struct emulation *emulation, uint32_t slot)
{
	uint64_t page_bytes = 1ull << emulation->page_shift;

	return (emulation->layout->slots[slot].bytes + page_bytes - 1) >> emulation->page_shift;
}

static uint8_t *slot_map(const struct emulation *emulation, uint32_t slot)
{
	return emulation->arena + (emulation->layout->slots[slot].offset >> emulation->page_shift);
}

void emulation_slot_born(struct emulation *emulation, uint32_t slot)
{
	const struct slot_birth *birth;
	uint64_t pages, first;
	uint8_t *map;

	if (!emulation || !emulation->layout)
		return;
	birth = &emulation->slot_birth[slot];
	map = slot_map(emulation, slot);
	pages = slot_pages(emulation, slot);
	first = birth->pages < pages ? birth->pages : pages;
	born(emulation, map, first, birth->first);
	born(emulation, map + first, pages - first, birth->rest);
}

void emulation_slot_dropped(struct emulation *emulation, uint32_t slot)
{
	const struct sentinel_part *parts;
	uint32_t count;

	if (!emulation || !emulation->layout)
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
	if (emulation)
		born(emulation, emulation->heap + page, pages, emulation->heap_birth);
}

void emulation_heap_dropped(struct emulation *emulation, uint64_t page, uint64_t pages)
{
	if (emulation)
		dropped(emulation, emulation->heap + page, pages);
}

static uint64_t slow_pages(const struct emulation *emulation, const struct sentinel_access *access)
{
	bool heap = access->flags & SENTINEL_ACCESS_HEAP, slow_birth = access->node != 0;
	uint64_t whole = heap ? emulation->segment->heap_pages : emulation->segment->arena_pages;
	const uint8_t *map = heap ? emulation->heap : emulation->arena;
	uint64_t page = access->offset >> emulation->page_shift, slow = 0;

	if (access->flags & SENTINEL_ACCESS_AT_BIRTH)
		return slow_birth ? access->pages : 0;
	if (page > whole || access->pages > whole - page)
		return 0;
	map += page;
	for (uint32_t i = 0; i < access->pages; i++)
		slow += map[i] > FAST;
	if (slow_birth)
		for (uint32_t i = 0; i < access->pages; i++)
			slow += !map[i];
	return slow;
}

struct served emulation_charge(struct emulation *emulation, uint32_t stretch)
{
	uint64_t before_ns = emulation->owed_ps / 1000;
	struct served served = {0};

	if (!emulation->layout || stretch >= emulation->layout->header->boundary_count)
		return served;
	for (uint32_t i = emulation->first_access[stretch]; i < emulation->first_access[stretch + 1]; i++) {
		const struct sentinel_access *access = &emulation->layout->accesses[i];
		uint64_t slow = slow_pages(emulation, access);

		emulation->owed_ps += slow * access->slow_ps;
		served.accesses += access->touched;
		if (access->pages)
			served.fast += (uint32_t)((access->pages - slow) * access->touched / access->pages);
	}
	served.owed_ns = emulation->owed_ps / 1000 - before_ns;
	__atomic_store_n(&emulation->segment->owed_ns, emulation->owed_ps / 1000, __ATOMIC_RELEASE);
	return served;
}

static void count(const uint8_t *map, uint64_t pages, uint64_t *fast, uint64_t *slow)
{
	for (uint64_t i = 0; i < pages; i++) {
		*fast += map[i] == FAST;
		*slow += map[i] > FAST;
	}
}

void emulation_resident(const struct emulation *emulation, uint64_t heap_pages, uint64_t *fast_bytes,
			uint64_t *slow_bytes)
{
	uint64_t fast = 0, slow = 0;

	count(emulation->arena, emulation->segment->arena_pages, &fast, &slow);
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
	count(emulation->arena, emulation->segment->arena_pages, &fast, &slow);
	count(emulation->heap, heap_pages, &fast, &slow);
	emulation->fast_own = fast - moved;
	tell_own(emulation);
}

uint64_t emulation_due(const struct emulation *emulation, bool all)
{
	int64_t debt;

	if (!emulation)
		return 0;
	debt = (int64_t)(emulation->owed_ps / 1000) - emulation->paid_ns;
	return debt > 0 && (all || debt >= PAY_NS_MIN) ? (uint64_t)debt : 0;
}

void emulation_pay(struct emulation *emulation)
{
	uint64_t debt = emulation_due(emulation, true), deadline = monotonic_ns() + debt, over;

	if (!debt)
		return;
	if (debt > SPIN_NS) {
		uint64_t until = deadline - SPIN_NS;
		struct timespec end = {
			.tv_sec = (time_t)(until / 1000000000ull),
			.tv_nsec = (long)(until % 1000000000ull),
		};

		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR)
			;
	}
	while (monotonic_ns() < deadline)
		;
	over = monotonic_ns() - deadline;
	emulation->paid_ns += (int64_t)(debt + (over < CREDIT_NS_MAX ? over : CREDIT_NS_MAX));
	__atomic_store_n(&emulation->segment->paid_ns, (uint64_t)emulation->paid_ns, __ATOMIC_RELEASE);
}
