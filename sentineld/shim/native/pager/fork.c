// SPDX-License-Identifier: Apache-2.0
/*
 * Gives a forked child the contents of its parent's pages. The child inherits the pages that
 * are in memory. The pages that are out would read as zeros in the child, because a child does
 * not inherit userfaultfd registrations. So the child maps the file's copies of these pages at
 * the pages' addresses. After a limited number of mappings, it reads the other copies into its
 * memory instead.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "children.h"
#include "progress.h"

#define MAPPINGS_DEFAULT 65530u /* the kernel's default of vm.max_map_count */

void pager_before_fork(struct pager *pager)
{
	pager_enter(pager);
	wait_until_settled(pager);
	forget_children(pager);
	pager->forking = make_child();
}

/* Forget the homes of the range's pages in memory. The child shares the frames of these pages. While
   it does, a write by the program gives the page another frame, without the pager's knowledge. That
   frame is not adjacent to the frames at the neighbours of the former frame's home. */
static void forget_homes(struct pager *pager, struct paged_range *range)
{
	const uint8_t *first = range->state, *last, *end = range->state + range->top;

	while ((first = memchr(first, PAGE_IN, (size_t)(end - first)))) {
		for (last = first; last < end && *last == PAGE_IN; last++)
			;
		frames_forget(&pager->frames, range->home + (first - range->state), (uint64_t)(last - first));
		first = last;
	}
}

void pager_after_fork_in_parent(struct pager *pager)
{
	keep_child(pager, pager->forking);
	for (struct paged_range *range = pager->ranges; range; range = range->next)
		forget_homes(pager, range);
	/* The other frames of these blocks will not return. Without frames, the blocks have room for new
	   huge pages. */
	frames_return_rests(&pager->frames);
	pager->forking = NULL;
	pthread_mutex_unlock(&pager->lock);
}

static uint64_t file_run(const struct paged_range *range, uint64_t page)
{
	uint64_t run = 1;

	while (page + run < range->top && range->state[page + run] == PAGE_OUT &&
	       range->file_page[page + run] == range->file_page[page] + run)
		run++;
	return run;
}

/* Maximum number of mappings of the file that a child makes. The kernel limits the number of a process's
   mappings, and at the limit the process cannot even enlarge its heap. A mapping of the file can split
   an existing mapping in two, and thus add two mappings. A quarter of the limit therefore leaves half of
   it for other mappings. */
static uint64_t mappings_most(void)
{
	char text[24] = "";
	int file = open("/proc/sys/vm/max_map_count", O_RDONLY | O_CLOEXEC);
	ssize_t got = read(file, text, sizeof(text) - 1);

	close(file);
	return (got > 0 ? strtoull(text, NULL, 10) : MAPPINGS_DEFAULT) / 4;
}

/* Map the file's copies of pages at the pages' addresses. *mappings: number of mappings that may
   still be made. If it is 0, or if mmap() fails, read the copies into the memory that the child has
   at these addresses. */
static void provide_run(const struct pager *pager, const struct paged_range *range, uint64_t page,
			uint64_t run, uint64_t *mappings)
{
	uint64_t offset = (uint64_t)range->file_page[page] << pager->page_shift;
	struct iovec part = {
		.iov_base = page_address(pager, range, page),
		.iov_len = run << pager->page_shift,
	};
	int error;

	if (*mappings && mmap(part.iov_base, part.iov_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
			      pager->file, (off_t)offset) != MAP_FAILED) {
		--*mappings;
		return;
	}
	error = transfer_whole(pager->file, &part, 1, offset, false);
	if (error)
		pager_fatal("a forked child cannot read its parent's pages from the file: %s, and it "
			    "cannot map more of the file (sysctl vm.max_map_count=1000000)",
			    strerror(-error));
}

void pager_after_fork_in_child(struct pager *pager)
{
	uint64_t mappings = mappings_most();

	for (const struct paged_range *range = pager->ranges; range; range = range->next)
		for (uint64_t page = 0, run; page < range->top; page += run) {
			run = 1;
			if (range->state[page] != PAGE_OUT)
				continue;
			run = file_run(range, page);
			provide_run(pager, range, page, run, &mappings);
		}
	close(pager->uffd);
	close(pager->stop_fd);
	close(pager->pagemap);
	close_children(pager, pager->forking);
}
