// SPDX-License-Identifier: Apache-2.0
/* The target: maps its memory, records the state of its pages, and runs its threads. */
#define _GNU_SOURCE
#include "truth.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGEMAP_PRESENT (1ull << 63)
#define PAGEMAP_FRAME ((1ull << 55) - 1)
#define FLAG_HUGE (1ull << 22)
#define FLAG_ZERO (1ull << 24)

static pthread_barrier_t step_barrier;
static struct worker workers[THREADS];

struct region *region_of(uint32_t page)
{
	for (uint32_t i = 0; i < program.regions; i++) {
		struct region *region = &program.region[i];

		if (page - region->start < region->count)
			return region;
	}
	CHECK(false, "page %u is in no region", page);
}

void mark(uint32_t start, uint32_t count, uint32_t bits)
{
	for (uint32_t page = start; page < start + count && page < ARENA_PAGES; page++)
		__atomic_fetch_or(&shared->marks[shared->epoch][page], bits, __ATOMIC_RELAXED);
}

static void fill(struct region *region)
{
	for (uint32_t page = 0; region->fill && page < region->count; page += region->fill)
		*(volatile char *)(shared->arena + (region->start + page) * PAGE) = 0;
}

uint64_t target_map(uint64_t unused, uint64_t unused2)
{
	size_t chunk = HUGE_PAGES * PAGE;
	size_t bytes = (ARENA_PAGES + HUGE_PAGES) * PAGE;
	char *map = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	(void)unused;
	(void)unused2;
	CHECK(map != MAP_FAILED, "%s", strerror(errno));
	shared->arena = ((uint64_t)map + chunk - 1) / chunk * chunk;
	for (uint32_t i = 0; i < program.regions; i++) {
		struct region *region = &program.region[i];

		map_part(region->start, region->count);
		if (region->huge && region->fill != 3)
			madvise((void *)(shared->arena + region->start * PAGE), region->count * PAGE,
				MADV_NOHUGEPAGE);
		fill(region);
	}
	for (uint32_t i = 0; i < program.threads; i++) {
		workers[i] = (struct worker){.thread = i};
		CHECK(!pipe2(workers[i].pipe, O_CLOEXEC), "pipe");
	}
	return 0;
}

static void read_at(int fd, uint64_t index, void *to, size_t count)
{
	ssize_t bytes = count * sizeof(uint64_t);

	CHECK(pread(fd, to, bytes, index * sizeof(uint64_t)) == bytes, "pread: %s", strerror(errno));
}

static uint32_t state_of(int flags_fd, uint64_t entry)
{
	uint64_t flags;

	if (!(entry & PAGEMAP_PRESENT))
		return 0;
	read_at(flags_fd, entry & PAGEMAP_FRAME, &flags, 1);
	if (flags & FLAG_ZERO)
		return MARK_ZERO | (flags & FLAG_HUGE ? MARK_HUGE : 0);
	return flags & FLAG_HUGE ? MARK_HUGE : MARK_PRESENT;
}

/* At the beginning of an epoch, sets the marks for the state of each page, as read from /proc. */
uint64_t target_snapshot(uint64_t epoch, uint64_t unused)
{
	static uint64_t entries[ARENA_PAGES];
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	int flags = open("/proc/kpageflags", O_RDONLY | O_CLOEXEC);

	(void)epoch;
	(void)unused;
	CHECK(pagemap >= 0 && flags >= 0, "%s", strerror(errno));
	for (uint32_t i = 0; i < program.regions; i++) {
		struct region *region = &program.region[i];

		read_at(pagemap, shared->arena / PAGE + region->start, entries, region->count);
		for (uint32_t page = 0; page < region->count; page++)
			mark(region->start + page, 1,
			     state_of(flags, entries[page]) | (region->huge ? MARK_MAYBE_HUGE : 0));
	}
	close(pagemap);
	close(flags);
	return 0;
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	uint32_t end = program.epoch_item[shared->epoch + 1];

	for (uint32_t i = program.epoch_item[shared->epoch]; i < end; i++) {
		struct item *item = &program.item[i];

		if (item->when == STRUCTURE)
			pthread_barrier_wait(&step_barrier);
		else if (item->when == THREAD && item->thread == worker->thread)
			item->verb->run(worker, item->arg);
	}
	return NULL;
}

/* Runs the threads of an epoch and waits for their end. */
uint64_t target_run(uint64_t epoch, uint64_t unused)
{
	pthread_t threads[THREADS];

	(void)unused;
	pthread_barrier_init(&step_barrier, NULL, program.threads);
	for (uint32_t i = 1; i < program.threads; i++)
		CHECK(!pthread_create(&threads[i], NULL, work, &workers[i]), "thread");
	work(&workers[0]);
	for (uint32_t i = 1; i < program.threads; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&step_barrier);
	end_forks(epoch);
	fflush(stdout);
	return 0;
}
