// SPDX-License-Identifier: Apache-2.0
/* Emulated tiers: computes the delay that each stretch owes for slow pages, and waits that long. */
#define _GNU_SOURCE
#include <errno.h>

#include "clock.h"
#include "residency.h"

#define PAY_NS_MIN 100000 /* smaller debts are paid later */
#define SPIN_NS 80000 /* a sleep can take this much longer than requested, so spin at the end of a delay */
/* If delay_spend() waits longer than requested, the excess counts as paid, too, up to this limit.
   If the excess is larger, the process was probably stopped or preempted. */
#define CREDIT_NS_MAX 200000

/* Number of the access's pages that are counted: all, or only pages of the tensor that was born last
   in the slot (see sentinel_access.slot). */
static uint32_t own_pages(const struct emulation *emulation, const struct sentinel_access *access)
{
	uint64_t pages, before;

	if (!access->slot)
		return access->pages;
	pages = emulation->born_pages[access->slot - 1];
	before =
		(access->offset - emulation->layout->slots[access->slot - 1].offset) >> emulation->page_shift;
	if (pages <= before)
		return 0;
	return pages - before < access->pages ? (uint32_t)(pages - before) : access->pages;
}

/* How many of the first `pages` pages of the access are slow now, or will be born slow. */
static uint64_t slow_pages(const struct emulation *emulation, const struct sentinel_access *access,
			   uint32_t pages)
{
	bool heap = access->flags & SENTINEL_ACCESS_HEAP, slow_birth = access->node != 0;
	uint64_t whole = heap ? emulation->heap_pages : emulation->arena_pages;
	const uint8_t *map = heap ? emulation->heap : emulation->arena;
	uint64_t page = access->offset >> emulation->page_shift, slow = 0;

	if (access->flags & SENTINEL_ACCESS_AT_BIRTH)
		return slow_birth ? pages : 0;
	if (page > whole || pages > whole - page)
		return 0;
	map += page;
	for (uint32_t i = 0; i < pages; i++)
		slow += map[i] > RESIDENCY_FAST;
	if (slow_birth)
		for (uint32_t i = 0; i < pages; i++)
			slow += !map[i];
	return slow;
}

/* Count the stretch's accesses that have the flag SENTINEL_ACCESS_AFTER (if `after` is true) or
   those that do not have it (if `after` is false), and add their delay to the debt. */
static void charge(struct emulation *emulation, uint32_t stretch, bool after, struct served *served)
{
	uint64_t owed_ps = 0, hidden_ps;

	if (!after)
		emulation->hidden_ps = 0;
	for (uint32_t i = emulation->first_access[stretch]; i < emulation->first_access[stretch + 1]; i++) {
		const struct sentinel_access *access = &emulation->layout->accesses[i];
		uint32_t pages;
		uint64_t slow;

		if (!(access->flags & SENTINEL_ACCESS_AFTER) == after)
			continue;
		if (access->flags & SENTINEL_ACCESS_HIDES) {
			emulation->hidden_ps = access->slow_ps;
			continue;
		}
		if (!access->pages) {
			served->accesses += access->touched;
			continue;
		}
		pages = own_pages(emulation, access);
		slow = slow_pages(emulation, access, pages);
		owed_ps += slow * access->slow_ps;
		served->accesses += (uint32_t)((uint64_t)pages * access->touched / access->pages);
		served->fast += (uint32_t)((pages - slow) * access->touched / access->pages);
	}
	hidden_ps = owed_ps < emulation->hidden_ps ? owed_ps : emulation->hidden_ps;
	emulation->hidden_ps -= hidden_ps;
	emulation->owed_ps += owed_ps - hidden_ps;
}

struct served emulation_charge(struct emulation *emulation, uint32_t stretch)
{
	uint64_t before_ns = emulation->owed_ps / 1000;
	struct served served = {0};

	if (!emulation->layout || stretch >= emulation->layout->header->boundary_count)
		return served;
	if (emulation->deferred)
		charge(emulation, emulation->deferred - 1, true, &served);
	charge(emulation, stretch, false, &served);
	emulation->deferred = emulation->defers ? stretch + 1 : 0;
	served.owed_ns = emulation->owed_ps / 1000 - before_ns;
	__atomic_store_n(&emulation->segment->owed_ns, emulation->owed_ps / 1000, __ATOMIC_RELEASE);
	return served;
}

void emulation_diverged(struct emulation *emulation)
{
	if (emulation)
		emulation->deferred = 0;
}

uint64_t emulation_due(const struct emulation *emulation, bool all)
{
	int64_t debt;

	if (!emulation)
		return 0;
	debt = (int64_t)(emulation->owed_ps / 1000) - emulation->paid_ns;
	return debt > 0 && (all || debt >= PAY_NS_MIN) ? (uint64_t)debt : 0;
}

uint64_t delay_spend(uint64_t delay_ns)
{
	uint64_t deadline = now_ns() + delay_ns, over;

	if (delay_ns > SPIN_NS) {
		uint64_t until = deadline - SPIN_NS;
		struct timespec end = {
			.tv_sec = (time_t)(until / 1000000000ull),
			.tv_nsec = (long)(until % 1000000000ull),
		};

		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR)
			;
	}
	while (now_ns() < deadline)
		;
	over = now_ns() - deadline;
	return delay_ns + (over < CREDIT_NS_MAX ? over : CREDIT_NS_MAX);
}

void emulation_paid(struct emulation *emulation, uint64_t spent_ns)
{
	emulation->paid_ns += (int64_t)spent_ns;
	__atomic_store_n(&emulation->segment->paid_ns, (uint64_t)emulation->paid_ns, __ATOMIC_RELEASE);
}
