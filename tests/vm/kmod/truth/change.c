// SPDX-License-Identifier: Apache-2.0
/* The target's verbs that change pages: mappings, protection, huge pages, forks. */
#define _GNU_SOURCE
#include "truth.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MPOL_PREFERRED 1
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static void *at(uint32_t page)
{
	return (void *)(shared->arena + page * PAGE);
}

static void advise(uint32_t start, uint32_t count, int advice)
{
	CHECK(!madvise(at(start), count * PAGE, advice), "madvise %d: %s", advice, strerror(errno));
}

static void protect(uint32_t start, uint32_t count, int protection)
{
	CHECK(!mprotect(at(start), count * PAGE, protection), "mprotect: %s", strerror(errno));
}

void mark_changed(uint32_t start, uint32_t count, uint32_t bits)
{
	uint32_t first = start / HUGE_PAGES * HUGE_PAGES;
	uint32_t end = (start + count + HUGE_PAGES - 1) / HUGE_PAGES * HUGE_PAGES;

	mark(start, count, bits);
	if (region_of(start)->huge)
		mark(first, end - first, MARK_CHANGED);
}

void map_part(uint32_t start, uint32_t count)
{
	struct region *region = region_of(start);
	unsigned long nodes = 1ul << region->node;

	CHECK(mmap(at(start), count * PAGE, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == at(start),
	      "mmap: %s", strerror(errno));
	if (!region->huge)
		advise(start, count, MADV_NOHUGEPAGE);
	if (region->node >= 0)
		CHECK(!syscall(SYS_mbind, at(start), count * PAGE, MPOL_PREFERRED, &nodes, 64, 0),
		      "mbind: %s", strerror(errno));
}

static void forget(uint32_t start, uint32_t count)
{
	for (uint32_t thread = 0; thread < THREADS; thread++)
		memset(&shadow[thread][start], 0, count * sizeof(shadow[0][0]));
}

void run_drop(struct worker *worker, const long *arg)
{
	(void)worker;
	mark_changed(arg[0], arg[1], MARK_DROPPED);
	advise(arg[0], arg[1], MADV_DONTNEED);
	forget(arg[0], arg[1]);
}

void run_remap(struct worker *worker, const long *arg)
{
	(void)worker;
	mark_changed(arg[0], arg[1], MARK_DROPPED);
	CHECK(!munmap(at(arg[0]), arg[1] * PAGE), "munmap: %s", strerror(errno));
	map_part(arg[0], arg[1]);
	forget(arg[0], arg[1]);
}

static bool remap_to(uint32_t from, uint32_t to, uint32_t count)
{
	return mremap(at(from), count * PAGE, count * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at(to)) == at(to);
}

void run_mremap(struct worker *worker, const long *arg)
{
	uint32_t from = arg[0], count = arg[1], to = arg[2];

	(void)worker;
	mark_changed(from, count, MARK_DROPPED | MARK_CHANGED);
	mark_changed(to, count, MARK_DROPPED | MARK_CHANGED | MARK_MOVED_IN);
	if (!remap_to(from, to, count)) {
		/* the pages are in several mappings: move them one by one */
		CHECK(errno == EFAULT, "mremap: %s", strerror(errno));
		for (uint32_t i = 0; i < count; i++)
			CHECK(remap_to(from + i, to + i, 1), "mremap: %s", strerror(errno));
	}
	map_part(from, count);
	for (uint32_t thread = 0; thread < THREADS; thread++)
		memcpy(&shadow[thread][to], &shadow[thread][from], count * sizeof(shadow[0][0]));
	forget(from, count);
}

void run_protect_none(struct worker *worker, const long *arg)
{
	(void)worker;
	mark_changed(arg[0], arg[1], MARK_CHANGED);
	protect(arg[0], arg[1], PROT_NONE);
	protect(arg[0], arg[1], PROT_READ | PROT_WRITE);
}

void run_protect_read(struct worker *worker, const long *arg)
{
	const long pages[] = {arg[0], arg[1], 1};

	mark_changed(arg[0], arg[1], MARK_CHANGED);
	protect(arg[0], arg[1], PROT_READ);
	run_read(worker, pages);
	protect(arg[0], arg[1], PROT_READ | PROT_WRITE);
}

void run_executable(struct worker *worker, const long *arg)
{
	(void)worker;
	mark_changed(arg[0], arg[1], MARK_CHANGED);
	protect(arg[0], arg[1], PROT_READ | PROT_WRITE | PROT_EXEC);
}

void run_not_executable(struct worker *worker, const long *arg)
{
	(void)worker;
	mark_changed(arg[0], arg[1], MARK_CHANGED);
	protect(arg[0], arg[1], PROT_READ | PROT_WRITE);
}

void run_huge(struct worker *worker, const long *arg)
{
	(void)worker;
	advise(arg[0], arg[1], MADV_HUGEPAGE);
}

void run_not_huge(struct worker *worker, const long *arg)
{
	(void)worker;
	advise(arg[0], arg[1], MADV_NOHUGEPAGE);
}

void run_collapse(struct worker *worker, const long *arg)
{
	(void)worker;
	mark_changed(arg[0], arg[1], MARK_CHANGED);
	/* may fail, for example if too few pages are present or a page cannot be isolated */
	madvise(at(arg[0]), arg[1] * PAGE, MADV_COLLAPSE);
}

void run_cold(struct worker *worker, const long *arg)
{
	(void)worker;
	advise(arg[0], arg[1], MADV_COLD);
}

void run_clear_refs(struct worker *worker, const long *arg)
{
	int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
	char digit = '0' + arg[0];

	(void)worker;
	CHECK(fd >= 0 && write(fd, &digit, 1) == 1, "clear_refs: %s", strerror(errno));
	close(fd);
}

void run_spin(struct worker *worker, const long *arg)
{
	struct timespec start, now;

	(void)worker;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < arg[0]);
}

/* Maximum number of children that outlive their `fork` verb; further children end within the verb. */
#define CHILDREN 64

static struct child {
	pid_t pid;
	int release;
	uint32_t start, count, last_epoch;
} children[CHILDREN];
static unsigned int child_count;
static pthread_mutex_t children_lock = PTHREAD_MUTEX_INITIALIZER;

static void run_child(const long *arg, uint32_t thread, int released)
{
	char byte;

	/*
	 * PR_SET_PDEATHSIG would kill the child when its parent thread ends, at the end of the
	 * epoch. So the child does not set it, and main() kills the process group instead.
	 */
	if (read(released, &byte, 1) != 1)
		_exit(2);
	_exit(check_copies(arg[0], arg[1], thread) ? 0 : 1);
}

static void end_child(struct child *child)
{
	int status;

	/*
	 * The child's accesses to pages without a memory policy may cause NUMA balancing to move
	 * pages of the target, too.
	 */
	if (region_of(child->start)->node < 0)
		mark_changed(child->start, child->count, MARK_CHANGED);
	CHECK(write(child->release, "x", 1) == 1, "pipe");
	close(child->release);
	CHECK(waitpid(child->pid, &status, 0) == child->pid, "waitpid");
	if (status)
		wrong_word("child", child->start);
}

void run_fork(struct worker *worker, const long *arg)
{
	struct child child = {
		.start = arg[0],
		.count = arg[1],
		.last_epoch = shared->epoch + arg[2] - 1,
	};
	int ends[2];

	CHECK(!pipe2(ends, O_CLOEXEC), "pipe");
	child.release = ends[1];
	child.pid = fork();
	CHECK(child.pid >= 0, "fork: %s", strerror(errno));
	if (child.pid == 0)
		run_child(arg, worker->thread, ends[0]);
	close(ends[0]);
	pthread_mutex_lock(&children_lock);
	if (arg[2] && child_count < CHILDREN) {
		children[child_count++] = child;
		child.pid = 0;
	}
	pthread_mutex_unlock(&children_lock);
	if (child.pid)
		end_child(&child);
}

/* Ends the children whose last epoch has passed. */
void end_forks(uint32_t epoch)
{
	unsigned int kept = 0;

	for (unsigned int i = 0; i < child_count; i++) {
		if (children[i].last_epoch > epoch)
			children[kept++] = children[i];
		else
			end_child(&children[i]);
	}
	child_count = kept;
}
