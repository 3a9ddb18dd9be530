// SPDX-License-Identifier: Apache-2.0
/*
 * The pages that a forked child sees. The child inherits the pages that are in memory. The
 * pages that are out would read as zeros in the child, because a child does not inherit
 * userfaultfd registrations. So the child maps the file's copies of these pages at the
 * pages' addresses. If there would be too many mappings, the child reads the copies
 * instead.
 *
 * Until the child ends or calls exec(), it may read any copy that was in the file at the
 * fork(), and so may the processes that it forks. The parent must not reuse these parts of
 * the file until all these processes have ended or called exec(). To detect this, the parent
 * creates and maps a new memfd before each fork(), and unmaps it afterwards. The child
 * inherits the mapping, and only an exit or an exec() ends it: unlike a pipe, it remains if
 * the child closes all its descriptors. A memfd can be sealed against writing only if no
 * process has a shared mapping of it (mm/memfd.c in Linux). So when the parent succeeds in
 * sealing the memfd, all these processes have ended or called exec().
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pages.h"

/* Holder (see filespace.h) of the file pages of children without a memfd. The parent does not notice
   when such a child ends, and therefore never releases these pages. */
#define UNNOTICED 0u

#define MAPPINGS_DEFAULT 65530u /* the kernel's default of vm.max_map_count */

/* A forked child with all processes that it forks. */
struct child {
	struct child *next;
	uint64_t holder; /* see filespace.h */
	int memfd;
	struct stat identity; /* of the memfd */
	void *mapping; /* of the memfd; in the parent, only during fork() */
};

static void delete_child(struct child *child)
{
	if (child->memfd >= 0)
		close(child->memfd);
	free(child);
}

/* Create the memfd for a fork() and map it. Returns NULL if a resource is missing. */
static struct child *make_child(void)
{
	struct child *child = calloc(1, sizeof(*child));

	if (!child)
		return NULL;
	child->memfd = memfd_create("sentinel-child", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (child->memfd >= 0 && !fstat(child->memfd, &child->identity)) {
		child->mapping = mmap(NULL, 1, PROT_NONE, MAP_SHARED, child->memfd, 0);
		if (child->mapping != MAP_FAILED)
			return child;
	}
	delete_child(child);
	return NULL;
}

/* Whether the child and the processes that it forked have all ended or called exec(). */
static bool has_ended(const struct child *child)
{
	struct stat now;

	/* The program may have closed the memfd, and opened another file with the same descriptor. */
	if (fstat(child->memfd, &now) || now.st_ino != child->identity.st_ino ||
	    now.st_dev != child->identity.st_dev)
		return false;
	return !fcntl(child->memfd, F_ADD_SEALS, F_SEAL_WRITE);
}

void forget_children(struct pager *pager)
{
	for (struct child **link = &pager->children; *link;) {
		struct child *child = *link;

		if (!has_ended(child)) {
			link = &child->next;
			continue;
		}
		*link = child->next;
		filespace_release(&pager->space, child->holder);
		delete_child(child);
	}
}

void delete_children(struct pager *pager)
{
	while (pager->children) {
		struct child *child = pager->children;

		pager->children = child->next;
		delete_child(child);
	}
}

void pager_before_fork(struct pager *pager)
{
	pager_enter(pager);
	wait_until_settled(pager);
	forget_children(pager);
	pager->forking = make_child();
}

void pager_after_fork_in_parent(struct pager *pager)
{
	struct child *child = pager->forking;

	pager->forking = NULL;
	if (child) {
		munmap(child->mapping, 1);
		child->holder = ++pager->forks;
		child->next = pager->children;
		pager->children = child;
	}
	filespace_hold(&pager->space, child ? child->holder : UNNOTICED);
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

/* Map the file's copies of pages at their addresses. If `*mappings` is 0, or mmap() fails, read the copies
   into the memory that the child has at these addresses. */
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
	if (pager->forking)
		close(pager->forking->memfd);
	for (const struct child *other = pager->children; other; other = other->next)
		close(other->memfd);
}
