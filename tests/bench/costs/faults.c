// SPDX-License-Identifier: Apache-2.0
/* The costs of page faults (on pages that are absent or armed) and of the module's operations. */
#define _GNU_SOURCE
#include "costs.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Allocates a populated array, so that writing to it does not fault. */
static uint32_t *cost_array(void)
{
	uint32_t *cost = malloc(pages * sizeof(*cost));

	CHECK(cost, "malloc");
	memset(cost, 1, pages * sizeof(*cost));
	return cost;
}

static void first_touches(struct series *read, struct series *write, uint32_t *cost)
{
	char *memory = map_fresh(pages);

	read_each(memory, cost, pages);
	series_pages(read, cost, pages);
	unmap(memory, pages);
	memory = map_fresh(pages);
	write_each(memory, cost, pages);
	series_pages(write, cost, pages);
	unmap(memory, pages);
}

void cost_plain(void)
{
	struct series read = series_new("zero_page_read");
	struct series write = series_new("zero_filled_write");
	uint32_t *cost = cost_array();

	for (unsigned int round = 0; round < rounds; round++)
		first_touches(&read, &write, cost);
	series_print(&read);
	series_print(&write);
}

static struct sampler watch(char *memory, uint32_t flags)
{
	uint64_t records = 4096;
	struct sampler sampler;

	while (records < 2 * pages)
		records *= 2;
	sampler = sampler_open_as(
		(struct sentinel_attach){.pid = getpid(), .log_records = records, .flags = flags});
	sampler_add(&sampler, (uint64_t)memory, pages);
	return sampler;
}

uint64_t sampler_age(struct sampler *sampler, uint64_t start, uint64_t count)
{
	struct sentinel_range range;
	int ret = range_call(sampler->fd, SENTINEL_IOC_AGE, start, count * PAGE, &range);

	CHECK(!ret, "AGE: %s", strerror(-ret));
	return range.pages_done;
}

/* Drains the records, checks their number, and adds the cost per record to the series. */
static void drain(struct sampler *sampler, uint64_t expected, struct series *series)
{
	struct sentinel_access *records;
	uint64_t begin = instructions();
	size_t count = sampler_drain(sampler, &records);

	if (series)
		series_call(series, instructions() - begin, count);
	CHECK(count == expected, "%zu records, not %lu", count, expected);
	free(records);
}

static void armed(void)
{
	struct series arm = series_new("arm_page");
	struct series disarm = series_new("disarm_page");
	struct series read = series_new("armed_read");
	struct series write = series_new("armed_write");
	struct series epoch = series_new("epoch_touched_page");
	struct series quiet = series_new("epoch_untouched");
	struct series take = series_new("drain_record");
	uint32_t *cost = cost_array();
	char *memory = map_fresh(pages);
	struct sampler sampler = watch(memory, 0);
	struct sentinel_stats stats;
	uint64_t begin;

	write_pages((uint64_t)memory, pages);
	for (unsigned int round = 0; round < rounds; round++) {
		begin = instructions();
		sampler_arm(&sampler, (uint64_t)memory, pages);
		series_call(&arm, instructions() - begin, pages);
		read_each(memory, cost, pages);
		series_pages(&read, cost, pages);
		begin = instructions();
		sampler_epoch(&sampler);
		series_call(&epoch, instructions() - begin, pages);
		drain(&sampler, pages, &take);
		write_each(memory, cost, pages);
		series_pages(&write, cost, pages);
		sampler_epoch(&sampler);
		drain(&sampler, pages, NULL);
		begin = instructions();
		sampler_epoch(&sampler);
		series_call(&quiet, instructions() - begin, 1);
		begin = instructions();
		sampler_disarm(&sampler, (uint64_t)memory, pages);
		series_call(&disarm, instructions() - begin, pages);
	}
	stats = sampler_stats(&sampler);
	CHECK(stats.hits == 2ul * rounds * pages && !stats.lost, "%llu hits, %llu lost", stats.hits,
	      stats.lost);
	sampler_close(&sampler);
	unmap(memory, pages);
	series_print(&arm);
	series_print(&disarm);
	series_print(&read);
	series_print(&write);
	series_print(&epoch);
	series_print(&quiet);
	series_print(&take);
}

/* Measures the second fault on a page that is read and then written in one epoch. */
static void precise(void)
{
	struct series again = series_new("precise_write_after_read");
	uint32_t *cost = cost_array();
	char *memory = map_fresh(pages);
	struct sampler sampler = watch(memory, SENTINEL_ATTACH_PRECISE_WRITE);

	write_pages((uint64_t)memory, pages);
	sampler_arm(&sampler, (uint64_t)memory, pages);
	for (unsigned int round = 0; round < rounds; round++) {
		read_each(memory, cost, pages);
		write_each(memory, cost, pages);
		series_pages(&again, cost, pages);
		sampler_epoch(&sampler);
		drain(&sampler, 2 * pages, NULL);
	}
	sampler_close(&sampler);
	unmap(memory, pages);
	series_print(&again);
}

/*
 * Measures first touches in an armed range. The kernel resolves their faults, and the module logs
 * the touches.
 */
static void births(void)
{
	struct series read = series_new("watched_zero_page_read");
	struct series write = series_new("birth_write");
	uint32_t *cost = cost_array();

	for (unsigned int round = 0; round < rounds; round++) {
		char *memory = map_fresh(pages);
		struct sampler sampler = watch(memory, 0);

		sampler_arm(&sampler, (uint64_t)memory, pages);
		write_each(memory, cost, pages);
		series_pages(&write, cost, pages);
		CHECK(!madvise(memory, pages * PAGE, MADV_DONTNEED), "%s", strerror(errno));
		sampler_epoch(&sampler);
		read_each(memory, cost, pages);
		series_pages(&read, cost, pages);
		sampler_close(&sampler);
		unmap(memory, pages);
	}
	series_print(&read);
	series_print(&write);
}

/*
 * Measures SENTINEL_IOC_AGE, which reads and clears the accessed bits of pages. It needs no armed
 * pages and causes no faults.
 */
static void ages(void)
{
	struct series young = series_new("age_page_accessed");
	struct series old = series_new("age_page_not_accessed");
	char *memory = map_fresh(pages);
	struct sampler sampler = watch(memory, 0);
	struct sentinel_access *records;

	write_pages((uint64_t)memory, pages);
	for (unsigned int round = 0; round < rounds; round++) {
		uint64_t begin = instructions();

		CHECK(sampler_age(&sampler, (uint64_t)memory, pages) == pages, "not all were accessed");
		series_call(&young, instructions() - begin, pages);
		begin = instructions();
		CHECK(sampler_age(&sampler, (uint64_t)memory, pages) == 0, "some were accessed");
		series_call(&old, instructions() - begin, pages);
		sampler_drain(&sampler, &records);
		free(records);
		read_pages((uint64_t)memory, pages);
	}
	sampler_close(&sampler);
	unmap(memory, pages);
	series_print(&young);
	series_print(&old);
}

void cost_armed(void)
{
	armed();
	precise();
	births();
	ages();
}

/* Holds a session of the module while another process is measured. */
void cost_hold(void)
{
	char *memory = map_fresh(pages);
	struct sampler sampler = watch(memory, 0);

	sampler_arm(&sampler, (uint64_t)memory, pages);
	puts("{\"name\": \"holding\"}");
	fflush(stdout);
	while (getchar() != EOF)
		;
	sampler_close(&sampler);
}
