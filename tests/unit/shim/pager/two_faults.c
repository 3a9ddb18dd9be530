// SPDX-License-Identifier: Apache-2.0
/* Raises two faults. Before the second one is served, the first one's pages have arrived, and a
   thread waits in pager_settle(). Link this file with -Wl,--wrap=workers_add and
   -Wl,--wrap=pthread_cond_wait. */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <time.h>

#include "pages.h"

static struct pager *two_faults; /* the pager of test_settles_between_faults() while it runs */
static pthread_t settling;
static bool waits; /* guarded by the pager's lock; whether a thread waits in pager_settle() */

void __real_workers_add(struct workers *workers, struct job *job, enum job_kind kind);
void __wrap_workers_add(struct workers *workers, struct job *job, enum job_kind kind);
int __real_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
int test_settles_between_faults(struct pager *pager);

int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
	if (two_faults && condition == &two_faults->changed)
		waits = true;
	return __real_pthread_cond_wait(condition, mutex);
}

static void *settle(void *argument)
{
	pager_settle(argument);
	return NULL;
}

static void wait_for_settle(struct pager *pager)
{
	for (bool waiting = false; !waiting; sched_yield()) {
		pthread_mutex_lock(&pager->lock);
		waiting = waits;
		pthread_mutex_unlock(&pager->lock);
	}
}

/* The thread that serves faults calls workers_add() to let another thread read the first fault's
   pages from the file. By then, it has also received the second fault from the userfaultfd. This
   function instead reads the first fault's pages at once, and returns when a thread waits in
   pager_settle(). */
void __wrap_workers_add(struct workers *workers, struct job *job, enum job_kind kind)
{
	struct pager *pager = two_faults;

	if (!pager) {
		__real_workers_add(workers, job, kind);
		return;
	}
	workers_run(workers, job);
	pthread_create(&settling, NULL, settle, pager);
	wait_for_settle(pager);
}

static void *access_page(void *page)
{
	(void)*(volatile char *)page;
	return NULL;
}

/* Whether the thread that serves faults waits for the pager's lock: while it waits, it holds the
   mutex `gate` (see pager_enter()). */
static bool serving_waits(struct pager *pager)
{
	if (pthread_mutex_trylock(&pager->gate))
		return true;
	pthread_mutex_unlock(&pager->gate);
	return false;
}

/* Access the first two pages of the first range, which are in the file, at the same time. Returns
   whether a pager_settle() that begins between the two faults ends within 10 s. */
int test_settles_between_faults(struct pager *pager)
{
	struct pollfd faults = {.fd = pager->uffd, .events = POLLIN};
	char *page = pager->ranges->base;
	struct timespec until;
	pthread_t accessing[2];
	int settled;

	two_faults = pager;
	pthread_mutex_lock(&pager->lock);
	pthread_create(&accessing[0], NULL, access_page, page);
	while (!serving_waits(pager))
		sched_yield();
	pthread_create(&accessing[1], NULL, access_page, page + (1ull << pager->page_shift));
	poll(&faults, 1, -1);
	pthread_mutex_unlock(&pager->lock);
	for (int i = 0; i < 2; i++)
		pthread_join(accessing[i], NULL);
	wait_for_settle(pager);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 10;
	settled = !pthread_timedjoin_np(settling, NULL, &until);
	two_faults = NULL;
	return settled;
}
