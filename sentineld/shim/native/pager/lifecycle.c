// SPDX-License-Identifier: Apache-2.0
/* Starts and stops the pager. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "children.h"
#include "faults.h"
#include "fetch.h"
#include "pagemap.h"
#include "progress.h"
#include "threads.h"
#include "uffd.h"

#define WANTED_ROOM 1024u

static void stop_threads(struct pager *pager)
{
	if (pager->has_thread) {
		event_signal(pager->stop_fd);
		pthread_join(pager->thread, NULL);
	}
	if (pager->workers.count)
		workers_stop(&pager->workers);
}

static void pager_delete(struct pager *pager)
{
	int fds[] = {pager->uffd, pager->stop_fd, pager->pagemap};

	stop_threads(pager);
	for (unsigned i = 0; i < sizeof(fds) / sizeof(*fds); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	frames_destroy(&pager->frames);
	filespace_destroy(&pager->space);
	delete_children(pager);
	free(pager->wanted);
	free(pager);
}

static const char *start(struct pager *pager, const struct pager_settings *settings)
{
	const char *problem = NULL;
	int error;

	pager->uffd = uffd_open(settings->device, &problem);
	if (pager->uffd < 0)
		return problem;
	pager->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pager->pagemap = pagemap_open();
	if (pager->stop_fd < 0 || pager->pagemap < 0)
		return "no file descriptor is available, or /proc/self/pagemap cannot be opened";
	pager->frames = (struct frames){
		.uffd = pager->uffd,
		.pagemap = pager->pagemap,
		.page_shift = pager->page_shift,
	};
	problem = frames_init(&pager->frames, settings->budget_pages);
	if (problem)
		return problem;
	pager->wanted_room = WANTED_ROOM;
	pager->wanted = calloc(pager->wanted_room, sizeof(*pager->wanted));
	if (!pager->wanted || !filespace_init(&pager->space, settings->file_pages))
		return "no memory for the pager's tables";
	if (workers_start(&pager->workers, settings->requests))
		return "the pager's threads cannot be started";
	error = thread_start(&pager->thread, serve_faults, pager);
	pager->has_thread = !error;
	return error ? "the pager's threads cannot be started" : NULL;
}

const char *pager_start(struct pager **out, const struct pager_settings *settings)
{
	struct pager *pager = calloc(1, sizeof(*pager));
	const char *problem;

	if (!pager)
		return "no memory for the pager";
	pthread_mutex_init(&pager->gate, NULL);
	pthread_mutex_init(&pager->lock, NULL);
	pthread_cond_init(&pager->changed, NULL);
	pager->uffd = pager->stop_fd = pager->pagemap = -1;
	pager->file = settings->file;
	pager->budget = settings->budget_pages;
	pager->notify = settings->notify;
	pager->proceed = pages_continue;
	pager->page_shift = (unsigned)__builtin_ctzl((unsigned long)sysconf(_SC_PAGESIZE));
	for (unsigned i = 0; i < TRANSITS_MAX; i++)
		pager->transits[i].pager = pager;
	problem = start(pager, settings);
	if (problem)
		pager_delete(pager);
	else
		*out = pager;
	return problem;
}

/* Fetch the pages that are out; returns false if no page was out. */
static bool fetch_all(struct pager *pager)
{
	bool any = false;

	pthread_mutex_lock(&pager->lock);
	for (struct paged_range *range = pager->ranges; range; range = range->next)
		if (memchr(range->state, PAGE_OUT, range->top)) {
			pages_want(pager, range, 0, range->top, &fetch_demanded);
			any = true;
		}
	pthread_mutex_unlock(&pager->lock);
	pager_settle(pager);
	return any;
}

void pager_stop(struct pager *pager)
{
	pthread_mutex_lock(&pager->lock);
	pager->budget = UINT64_MAX;
	/* born pages that have no frame yet get frames from the kernel after the stop */
	pager->births_count = 0;
	pthread_mutex_unlock(&pager->lock);
	/* More than one pass can be necessary: whenever the kernel has no frame to give, frame_ready()
	   evicts pages, no matter how large the budget is. */
	while (fetch_all(pager))
		;
	while (pager->ranges)
		pager_remove(pager, pager->ranges->base);
	pager_delete(pager);
}
