// SPDX-License-Identifier: Apache-2.0
/* Accesses to pages that are not in memory. */
#define _GNU_SOURCE
#include <poll.h>
#include <unistd.h>

#include "pages.h"
#include "uffd.h"

#define READ_AHEAD_PAGES 32u

/* Whether the page is in memory or in the kernel's swap. */
static bool mapped(const struct pager *pager, uintptr_t address)
{
	uint64_t entry;
	off_t at = (off_t)((address >> pager->page_shift) * sizeof(entry));

	return pread(pager->pagemap, &entry, sizeof(entry), at) != sizeof(entry) || entry >> 62;
}

/* Serve one fault. When the page arrives, UFFDIO_MOVE or UFFDIO_COPY wakes the threads that wait
   for it. */
static void serve(struct pager *pager, uintptr_t address)
{
	struct paged_range *range = range_of(pager, (void *)address);
	uint64_t page, ahead = 1;

	if (!range)
		return;
	page = page_number(pager, range, (void *)address);
	if (range->state[page] == PAGE_IN) {
		if (mapped(pager, address)) {
			/* The page has arrived since the fault was raised. */
			uffd_wake(pager->uffd, page_address(pager, range, page), 1ull << pager->page_shift);
			return;
		}
		/* The program itself has dropped the page by madvise(). */
		set_state(range, page, 1, PAGE_ABSENT);
		pager->resident--;
	}
	if (range->state[page] == PAGE_ABSENT) {
		/* The page's content is undefined: a part of the tensor was dropped, or the tensor was
		   allocated before pager_add() and not used until now. */
		pager->counts.births_by_fault++;
		pages_born(pager, range, page, page + 1);
		return;
	}
	pager->counts.faults++;
	if (range->transit[page]) {
		pages_fetch(pager, range, page, 1, frame_ready);
		return;
	}
	while (ahead < READ_AHEAD_PAGES && page + ahead < range->pages &&
	       range->state[page + ahead] == PAGE_OUT && !range->transit[page + ahead])
		ahead++;
	pages_want(pager, range, page, ahead);
}

void *serve_faults(void *argument)
{
	struct pager *pager = argument;
	struct pollfd polled[] = {
		{.fd = pager->uffd, .events = POLLIN},
		{.fd = pager->stop_fd, .events = POLLIN},
		{.fd = pager->children, .events = POLLIN},
	};
	uintptr_t address;

	pthread_setname_np(pthread_self(), "sentineld-fault");
	while (!polled[1].revents) {
		if (poll(polled, 3, -1) < 0)
			continue;
		if (polled[2].revents) {
			pthread_mutex_lock(&pager->lock);
			forget_children(pager);
			pthread_mutex_unlock(&pager->lock);
		}
		while (uffd_next_fault(pager->uffd, &address)) {
			pthread_mutex_lock(&pager->lock);
			serve(pager, address);
			pthread_mutex_unlock(&pager->lock);
		}
	}
	return NULL;
}
