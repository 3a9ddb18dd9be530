// SPDX-License-Identifier: Apache-2.0
/*
 * Emulated tiers: the daemon moves pages in batches (struct sentinel_flight), and writes the
 * residency map only when a batch ends. This file records in the map which pages of the current
 * batch have arrived, so the map is exact at each boundary.
 */
#include "residency.h"

#define ELAPSED_NS_MAX (UINT64_MAX / 1000) /* more than 200 days */

bool flight_active(const struct emulation *emulation)
{
	const struct flight *flight;

	if (!emulation || !emulation->flight)
		return false;
	flight = emulation->flight;
	if (!flight_current(emulation))
		return true;
	return flight->range < flight->count &&
	       flight->arrived < __atomic_load_n(&emulation_flight(emulation)->limit, __ATOMIC_RELAXED);
}

/* Whether the words that were read after `sequence` are consistent: the daemon has not changed them
   since `sequence` was read. The words must have been read with acquire semantics, so that their
   reads precede the second read of the sequence, in this function. */
static bool unchanged(const struct sentinel_flight *words, uint64_t sequence)
{
	return __atomic_load_n(&words->sequence, __ATOMIC_RELAXED) == sequence;
}

static void copy_ranges(struct sentinel_page_range *to, const struct sentinel_page_range *from,
			uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		to[i].page = __atomic_load_n(&from[i].page, __ATOMIC_ACQUIRE);
		to[i].pages = __atomic_load_n(&from[i].pages, __ATOMIC_ACQUIRE);
		to[i].space = __atomic_load_n(&from[i].space, __ATOMIC_ACQUIRE);
	}
}

/* Copy the daemon's words, if they have changed since the last copy, and set *limit to their
   `limit`. Returns false if the daemon is changing the words. The copy is used instead of the words
   because the daemon may change these at any time. */
static bool copy(struct flight *flight, const struct sentinel_flight *words, uint64_t *limit)
{
	uint64_t sequence = __atomic_load_n(&words->sequence, __ATOMIC_ACQUIRE);
	uint32_t node, count;

	*limit = __atomic_load_n(&words->limit, __ATOMIC_ACQUIRE);
	if (sequence == flight->sequence)
		return unchanged(words, sequence);
	flight->sequence = 1;
	flight->count = 0;
	flight->range = flight->page = 0;
	flight->arrived = flight->arrived_fast = 0;
	if (sequence & 1)
		return false;
	flight->begin_ns = __atomic_load_n(&words->begin_ns, __ATOMIC_ACQUIRE);
	flight->page_ps = __atomic_load_n(&words->page_ps, __ATOMIC_ACQUIRE);
	count = __atomic_load_n(&words->count, __ATOMIC_ACQUIRE);
	node = __atomic_load_n(&words->node, __ATOMIC_ACQUIRE);
	if (count > SENTINEL_FLIGHT_RANGES || node > 254)
		count = 0;
	flight->value = (uint8_t)(node + 1);
	copy_ranges(flight->ranges, words->ranges, count);
	if (!unchanged(words, sequence))
		return false;
	flight->count = count;
	flight->sequence = sequence;
	return true;
}

/* Number of pages that have arrived by now_ns. */
static uint64_t arrived_by(const struct flight *flight, uint64_t now_ns)
{
	uint64_t elapsed_ns = now_ns > flight->begin_ns ? now_ns - flight->begin_ns : 0;

	if (!flight->page_ps || elapsed_ns > ELAPSED_NS_MAX)
		return UINT64_MAX;
	return elapsed_ns * 1000 / flight->page_ps;
}

/* Record in the map that `pages` pages of the range, from its page `first` on, have arrived. Absent
   pages stay absent. */
static void arrive(struct emulation *emulation, const struct sentinel_page_range *range, uint32_t first,
		   uint64_t pages)
{
	uint64_t whole = range->space ? emulation->heap_pages : emulation->arena_pages;
	uint8_t *map = range->space ? emulation->heap : emulation->arena;
	struct flight *flight = emulation->flight;
	uint64_t left = 0, entered = 0;

	if (range->page > whole || range->pages > whole - range->page)
		return;
	map += range->page + first;
	for (uint64_t i = 0; i < pages; i++) {
		if (!map[i] || map[i] == flight->value)
			continue;
		left += map[i] == RESIDENCY_FAST;
		entered += flight->value == RESIDENCY_FAST;
		map[i] = flight->value;
	}
	emulation->fast_own += entered - left;
	flight->arrived_fast += entered;
}

void flight_arrive(struct emulation *emulation, uint64_t now_ns)
{
	struct flight *flight = emulation->flight;
	uint64_t due, limit;

	if (!copy(flight, emulation_flight(emulation), &limit))
		return;
	due = arrived_by(flight, now_ns);
	if (due > limit)
		due = limit;
	while (flight->range < flight->count && flight->arrived < due) {
		const struct sentinel_page_range *range = &flight->ranges[flight->range];
		uint64_t pages = range->pages - flight->page;

		if (pages > due - flight->arrived)
			pages = due - flight->arrived;
		arrive(emulation, range, flight->page, pages);
		flight->arrived += pages;
		flight->page += (uint32_t)pages;
		if (flight->page == range->pages) {
			flight->range++;
			flight->page = 0;
		}
	}
	residency_publish_fast(emulation);
}
