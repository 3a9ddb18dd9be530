// SPDX-License-Identifier: Apache-2.0
/* Adds and removes ranges of managed memory. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "pagemap.h"
#include "progress.h"
#include "uffd.h"
#include "wanted.h"

/* Map zeroed memory without reserving it, because tables of large ranges are mostly untouched. */
static void *table(uint64_t items, uint64_t item_bytes)
{
	void *made = mmap(NULL, items * item_bytes, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return made == MAP_FAILED ? NULL : made;
}

static void range_delete(struct paged_range *range)
{
	if (range->state)
		munmap(range->state, range->pages);
	if (range->planned)
		munmap(range->planned, range->pages);
	if (range->born_out)
		munmap(range->born_out, range->pages);
	if (range->role)
		munmap(range->role, range->pages);
	if (range->begins)
		munmap(range->begins, range->pages);
	if (range->pending)
		munmap(range->pending, range->pages);
	if (range->transit)
		munmap(range->transit, range->pages);
	if (range->awaited)
		munmap(range->awaited, range->pages);
	if (range->recent)
		munmap(range->recent, range->pages);
	if (range->home)
		munmap(range->home, range->pages * sizeof(*range->home));
	if (range->file_page)
		munmap(range->file_page, range->pages * sizeof(*range->file_page));
	if (range->arrival)
		munmap(range->arrival, range->pages * sizeof(*range->arrival));
	if (range->sum)
		munmap(range->sum, range->pages * sizeof(*range->sum));
	free(range);
}

static struct paged_range *range_new(char *base, uint64_t pages)
{
	struct paged_range *range = calloc(1, sizeof(*range));

	if (!range)
		return NULL;
	range->base = base;
	range->pages = pages;
	range->state = table(pages, 1);
	range->planned = table(pages, 1);
	range->born_out = table(pages, 1);
	range->role = table(pages, 1);
	range->begins = table(pages, 1);
	range->pending = table(pages, 1);
	range->transit = table(pages, 1);
	range->awaited = table(pages, 1);
	range->recent = table(pages, 1);
	range->home = table(pages, sizeof(*range->home));
	range->file_page = table(pages, sizeof(*range->file_page));
	range->arrival = table(pages, sizeof(*range->arrival));
	range->sum = table(pages, sizeof(*range->sum));
	if (range->state && range->planned && range->born_out && range->role && range->begins &&
	    range->pending && range->transit && range->awaited && range->recent && range->home &&
	    range->file_page && range->arrival && range->sum)
		return range;
	range_delete(range);
	return NULL;
}

/* Find those of the first `used` pages that already have content, in memory or in the kernel's
   swap. Returns their number, or -errno. */
static int64_t find_present(struct pager *pager, struct paged_range *range, uint64_t used)
{
	bool mapped[PAGEMAP_BATCH];
	int64_t found = 0;

	for (uint64_t page = 0; page < used;) {
		int64_t count = pagemap_read(pager->pagemap, page_address(pager, range, page),
					     pager->page_shift, used - page, mapped);

		if (count < 0)
			return count;
		for (int64_t i = 0; i < count; i++)
			if (mapped[i]) {
				range->state[page + i] = PAGE_IN;
				range->planned[page + i] = true;
				range->top = page + i + 1;
				found++;
			}
		page += (uint64_t)count;
	}
	return found;
}

const char *pager_add(struct pager *pager, void *base, uint64_t bytes, uint64_t used_bytes)
{
	struct paged_range *range = range_new(base, bytes >> pager->page_shift);
	int64_t found;

	if (!range)
		return "no memory for the tables of paged memory";
	/* Use base pages: moving a part of a huge page would split the huge page. */
	madvise(base, bytes, MADV_NOHUGEPAGE);
	pthread_mutex_lock(&pager->lock);
	if (uffd_register(pager->uffd, base, bytes)) {
		pthread_mutex_unlock(&pager->lock);
		range_delete(range);
		return "the memory cannot be registered with userfaultfd";
	}
	/* From now on, only the pager creates pages in this range. */
	found = find_present(pager, range, used_bytes >> pager->page_shift);
	if (found < 0) {
		uffd_unregister(pager->uffd, base, bytes);
		pthread_mutex_unlock(&pager->lock);
		range_delete(range);
		return "/proc/self/pagemap cannot be read";
	}
	set_roles(range, 0, range->top);
	pager->resident += (uint64_t)found;
	range->next = pager->ranges;
	pager->ranges = range;
	pages_continue(pager);
	pthread_mutex_unlock(&pager->lock);
	return NULL;
}

void pager_publish(struct pager *pager, void *base, uint8_t *table)
{
	struct paged_range *range;

	pthread_mutex_lock(&pager->lock);
	range = range_of(pager, base);
	if (range) {
		range->published = table;
		if (table)
			memcpy(table, range->state, range->top);
	}
	pthread_mutex_unlock(&pager->lock);
}

void pager_remove(struct pager *pager, void *base)
{
	struct paged_range **link = &pager->ranges, *range;

	pthread_mutex_lock(&pager->lock);
	while (*link && (*link)->base != base)
		link = &(*link)->next;
	range = *link;
	if (range) {
		*link = range->next;
		for (uint64_t page = 0; page < range->top; page++)
			pager->resident -= range->state[page] == PAGE_IN;
		frames_forget(&pager->frames, range->home, range->top);
		if (pager->hand_range == range)
			pager->hand_range = NULL;
		read_ahead_forget(&pager->read_ahead, range);
		wanted_forget(pager, range, 0, range->pages);
		/* This also wakes the threads that wait for pages of the range. */
		uffd_unregister(pager->uffd, base, range->pages << pager->page_shift);
		range_delete(range);
	}
	pthread_mutex_unlock(&pager->lock);
}
