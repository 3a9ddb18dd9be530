// SPDX-License-Identifier: Apache-2.0
/*
 * The children of the process, and the parts of the file that they may read.
 *
 * Until a child ends or calls exec(), it may read the copy of any page that was in the file at
 * the fork(), and so may the processes that it forks. The parent must not reuse these parts of
 * the file until all these processes have ended or called exec(). To detect this, the parent
 * creates and maps a new memfd before each fork(), and unmaps it afterwards. The child inherits
 * the mapping, which lasts until an exit or an exec(). A descriptor, such as one end of a pipe,
 * could not replace the mapping, because a child can close all its descriptors. A memfd can be
 * sealed against writing only if no process has a shared mapping of it (mm/memfd.c in Linux).
 * So when the parent succeeds in sealing the memfd, all these processes have ended or called
 * exec().
 */
#define _GNU_SOURCE
#include "children.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Holder (see filespace.h) of the file pages of children without a memfd. The parent cannot detect
   the end of such a child, and therefore never releases these pages. */
#define UNNOTICED 0u

/* A forked child with all processes that it forks. */
struct child {
	struct child *next;
	uint64_t holder; /* see filespace.h */
	int memfd;
	struct stat identity; /* of the memfd */
	void *mapping; /* of the memfd; in the parent, it exists only during fork() */
};

/* Whether the memfd is still open. The program may have closed it, and opened another file with the
   same descriptor. */
static bool is_open(const struct child *child)
{
	struct stat now;

	return !fstat(child->memfd, &now) && now.st_ino == child->identity.st_ino &&
	       now.st_dev == child->identity.st_dev;
}

static void close_memfd(const struct child *child)
{
	if (is_open(child))
		close(child->memfd);
}

static void delete_child(struct child *child)
{
	close_memfd(child);
	free(child);
}

/* Create the memfd for a fork() and map it. Returns NULL if a resource is missing. */
struct child *make_child(void)
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
	return is_open(child) && !fcntl(child->memfd, F_ADD_SEALS, F_SEAL_WRITE);
}

void keep_child(struct pager *pager, struct child *child)
{
	if (child) {
		munmap(child->mapping, 1);
		child->holder = ++pager->forks;
		child->next = pager->children;
		pager->children = child;
	}
	filespace_hold(&pager->space, child ? child->holder : UNNOTICED);
}

void close_children(const struct pager *pager, const struct child *child)
{
	if (child)
		close_memfd(child);
	for (const struct child *other = pager->children; other; other = other->next)
		close_memfd(other);
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
