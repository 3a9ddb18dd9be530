// SPDX-License-Identifier: Apache-2.0
/* The controller: attaches, runs the epochs, prints the true accesses and the module's records. */
#define _GNU_SOURCE
#include "truth.h"

#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOG_RECORDS (1u << 16)
#define RECORDS (1u << 20)

struct shared *shared;

static struct target target;
static struct sampler sampler;
static bool running; /* whether the target's threads run */
static bool watched[ARENA_PAGES];
static struct sentinel_access *records;
static size_t record_count;

/*
 * Goes through the added ranges and calls visit() for each contiguous run of pages that lie in the
 * current range and in [start, start + count). With only_watched, a run contains only watched pages.
 */
static void each_run(uint32_t start, uint32_t count, bool only_watched,
		     void (*visit)(uint64_t address, uint32_t start, uint32_t count))
{
	for (uint32_t i = 0; i < program.ranges; i++) {
		struct range *range = &program.range[i];
		uint32_t page = range->start > start ? range->start : start;
		uint32_t end = range->start + range->count;
		uint32_t run = 0;

		if (end > start + count)
			end = start + count;
		for (; range->added && page < end; page++) {
			if (!only_watched || watched[page])
				run++;
			if (run && (page + 1 == end || (only_watched && !watched[page + 1]))) {
				visit(shared->arena + (page + 1 - run) * PAGE, page + 1 - run, run);
				run = 0;
			}
		}
	}
}

static void watch(uint64_t address, uint32_t start, uint32_t count)
{
	sampler_arm(&sampler, address, count);
	memset(&watched[start], true, count);
}

static void unwatch(uint64_t address, uint32_t start, uint32_t count)
{
	sampler_disarm(&sampler, address, count);
	memset(&watched[start], false, count);
}

static void arm_again(uint64_t address, uint32_t start, uint32_t count)
{
	(void)start;
	sampler_arm(&sampler, address, count);
}

static void pause_watch(uint64_t address, uint32_t start, uint32_t count)
{
	if (running)
		mark(start, count, MARK_PAUSED);
	sampler_disarm(&sampler, address, count);
}

void control_arm(const long *arg)
{
	each_run(arg[0], arg[1], false, watch);
}

void control_disarm(const long *arg)
{
	each_run(arg[0], arg[1], false, unwatch);
}

void control_rearm(const long *arg)
{
	each_run(arg[0], arg[1], true, arm_again);
}

static struct range *range_at(long index)
{
	CHECK(index >= 0 && index < (long)program.ranges, "range %ld", index);
	return &program.range[index];
}

void control_add(const long *arg)
{
	struct range *range = range_at(arg[0]);

	if (range->added)
		return;
	sampler_add(&sampler, shared->arena + range->start * PAGE, range->count);
	range->added = true;
	watch(shared->arena + range->start * PAGE, range->start, range->count);
}

void control_remove(const long *arg)
{
	struct range *range = range_at(arg[0]);
	int ret;

	if (!range->added)
		return;
	ret = range_call(sampler.fd, SENTINEL_IOC_REMOVE_RANGE, shared->arena + range->start * PAGE,
			 range->count * PAGE, NULL);
	CHECK(!ret, "REMOVE_RANGE: %s", strerror(-ret));
	range->added = false;
	memset(&watched[range->start], false, range->count);
}

/* Calls move_pages(). Pages that are absent, busy, or shared with a forked child do not move. */
static void try_move(const long *arg)
{
	void *pages[ARENA_PAGES];
	int nodes[ARENA_PAGES], status[ARENA_PAGES];

	for (long i = 0; i < arg[1]; i++) {
		pages[i] = (void *)(shared->arena + (arg[0] + i) * PAGE);
		nodes[i] = arg[2];
	}
	syscall(SYS_move_pages, target.pid, arg[1], pages, nodes, status, 2);
}

void control_move(const long *arg)
{
	each_run(arg[0], arg[1], true, pause_watch);
	try_move(arg);
	each_run(arg[0], arg[1], true, arm_again);
}

void control_move_bare(const long *arg)
{
	mark_changed(arg[0], arg[1], MARK_CHANGED);
	try_move(arg);
}

void control_wait(const long *arg)
{
	usleep(arg[0]);
}

static void control_items(enum when when)
{
	for (uint32_t i = program.epoch_item[shared->epoch]; i < program.epoch_item[shared->epoch + 1]; i++) {
		if (program.item[i].when == when)
			program.item[i].verb->control(program.item[i].arg);
	}
}

static void drain(void)
{
	struct sentinel_access *found;
	size_t count = sampler_drain(&sampler, &found);

	CHECK(record_count + count <= RECORDS, "%zu records", record_count);
	memcpy(records + record_count, found, count * sizeof(*found));
	record_count += count;
	free(found);
}

static void run_epoch(void)
{
	uint64_t next;

	control_items(BEFORE);
	for (uint32_t page = 0; page < ARENA_PAGES; page++)
		mark(page, 1, watched[page] ? MARK_WATCHED : 0);
	target_call(&target, target_snapshot, shared->epoch, 0);
	running = true;
	target_begin(&target, target_run, shared->epoch, 0);
	control_items(DURING);
	target_end(&target);
	running = false;
	next = target_call(&target, epoch_by_fd, 0, 0);
	CHECK(next == shared->epoch + 1, "epoch %lu after %u", next, shared->epoch);
	drain();
}

/*
 * The accesses of all threads to a page in an epoch. If the first access of one thread was
 * a read and that of another thread a write, their order is unknown, so neither
 * TRUTH_READ_FIRST nor TRUTH_WRITE_FIRST is set.
 */
static uint8_t all_threads(uint32_t epoch, uint32_t page)
{
	uint8_t all = 0;

	for (uint32_t thread = 0; thread < THREADS; thread++)
		all |= shared->truth[thread][epoch][page];
	if ((all & TRUTH_READ_FIRST) && (all & TRUTH_WRITE_FIRST))
		all &= ~(TRUTH_READ_FIRST | TRUTH_WRITE_FIRST);
	return all;
}

static void print_truth(uint32_t epoch)
{
	uint32_t start = 0;

	for (uint32_t page = 1; page <= ARENA_PAGES; page++) {
		uint32_t truth = all_threads(epoch, start), marks = shared->marks[epoch][start];

		if (page < ARENA_PAGES && all_threads(epoch, page) == truth &&
		    shared->marks[epoch][page] == marks)
			continue;
		if (truth || marks)
			printf("p %u %u %u %u %u\n", epoch, start, page - start, truth, marks);
		start = page;
	}
}

static void print_all(void)
{
	struct sentinel_stats stats = sampler_stats(&sampler);

	for (uint32_t epoch = 1; epoch <= program.epochs; epoch++)
		print_truth(epoch);
	for (size_t i = 0; i < record_count; i++)
		printf("a %u %lld %u %u %u\n", records[i].epoch, records[i].page - shared->arena / PAGE,
		       records[i].node, records[i].flags, records[i].more_pages);
	printf("lost %llu\n", stats.lost);
}

void control_run(void)
{
	struct sentinel_info info;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	records = malloc(RECORDS * sizeof(*records));
	CHECK(shared != MAP_FAILED && records, "memory");
	shared->epoch = 1;
	target = target_start();
	target_call(&target, target_map, 0, 0);
	sampler = sampler_open_as((struct sentinel_attach){
		.pid = target.pid,
		.flags = program.precise ? SENTINEL_ATTACH_PRECISE_WRITE : 0,
		.log_records = LOG_RECORDS,
		.rearm_us = program.rearm_us,
	});
	CHECK(!ioctl(sampler.fd, SENTINEL_IOC_INFO, &info), "INFO");
	printf("features %u\n", info.features);
	for (long i = 0; i < program.ranges; i++)
		control_add(&i);
	sampler_epoch_fd(&sampler, &target);
	for (; shared->epoch <= program.epochs; shared->epoch++)
		run_epoch();
	print_all();
	fflush(stdout);
	sampler_close(&sampler);
	target_call(&target, target_verify, 0, 0);
	printf("wrong %lu\n", shared->wrong);
	target_stop(&target);
}
