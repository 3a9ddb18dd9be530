// SPDX-License-Identifier: Apache-2.0
/* Enforces the budget, and continues accesses, births and moves for which no frames were free. */
#include "progress.h"

#include "births.h"
#include "fetch.h"
#include "threads.h"
#include "transit.h"
#include "victims.h"

/* Signal that incomplete moves can go on. */
static void resume_moves(struct pager *pager)
{
	if (pager->incomplete && pager->notify >= 0) {
		event_signal(pager->notify);
		pager->incomplete = false;
	}
}

void pages_continue(struct pager *pager)
{
	uint64_t used = pager_frames(pager);

	if (used > pager->budget)
		used -= frames_shrink(&pager->frames, used - pager->budget);
	if (used > pager->budget)
		make_room(pager, used - pager->budget);
	while (pager->wanted_count) {
		struct wanted *next = &pager->wanted[pager->wanted_first];
		uint64_t some = next->pages;

		if (!next->birth)
			some = pages_fetch(pager, next->range, next->page, next->pages, &fetch_demanded);
		else if (some && !birth_demanded(pager, next->range, next->page))
			some = 0;
		next->page += some;
		next->pages -= some;
		if (next->pages)
			break;
		pager->wanted_first = (pager->wanted_first + 1) % pager->wanted_room;
		pager->wanted_count--;
	}
	if (births_continue(pager))
		streams_continue(pager);
	pthread_cond_broadcast(&pager->changed);
	resume_moves(pager);
}

void pager_set_budget(struct pager *pager, uint64_t pages)
{
	pthread_mutex_lock(&pager->lock);
	pager->budget = pages;
	pages_continue(pager);
	pthread_mutex_unlock(&pager->lock);
}

bool pager_file_grown(struct pager *pager, uint64_t pages)
{
	bool grown;

	pthread_mutex_lock(&pager->lock);
	grown = filespace_grow(&pager->space, pages);
	pages_continue(pager);
	pthread_mutex_unlock(&pager->lock);
	return grown;
}

void wait_until_settled(struct pager *pager)
{
	while (pager_busy(pager) || pager->wanted_count || pager->serving)
		pthread_cond_wait(&pager->changed, &pager->lock);
}

void pager_settle(struct pager *pager)
{
	pthread_mutex_lock(&pager->lock);
	wait_until_settled(pager);
	pthread_mutex_unlock(&pager->lock);
}
