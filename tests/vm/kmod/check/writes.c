// SPDX-License-Identifier: Apache-2.0
/* Checks optional features: precise writes, re-arming in an epoch, and AGE, which needs no faults. */
#define _GNU_SOURCE
#include "check.h"

#include <string.h>
#include <time.h>

#define PAGES 700ul
#define THIRD 200ul
#define WRITE SENTINEL_ACCESS_WRITE
#define AGAIN SENTINEL_ACCESS_AGAIN

static uint64_t read_and_write(uint64_t address, uint64_t pages)
{
	read_pages(address, pages);
	return write_pages(address, pages);
}

static void check_flags(struct sampler *sampler, uint64_t address, uint64_t reads, uint64_t writes,
			uint64_t later_writes)
{
	uint64_t found[32];

	sampler_count_flags(sampler, address, PAGES, found);
	CHECK(found[0] == reads && found[WRITE] == writes && found[WRITE | AGAIN] == later_writes,
	      "%lu reads, %lu writes, %lu later writes", found[0], found[WRITE], found[WRITE | AGAIN]);
	CHECK(!found[AGAIN] && !found[SENTINEL_ACCESS_UNKNOWN], "%lu and %lu others", found[AGAIN],
	      found[SENTINEL_ACCESS_UNKNOWN]);
}

void check_writes(void)
{
	struct target target = target_start();
	uint64_t address = target_call(&target, map_pages, PAGES, 1);
	struct sampler sampler = sampler_open_as((struct sentinel_attach){
		.pid = target.pid,
		.flags = SENTINEL_ATTACH_PRECISE_WRITE,
		.log_records = 1 << 14,
	});

	sampler_add(&sampler, address, PAGES);
	sampler_arm(&sampler, address, PAGES);
	for (int epoch = 0; epoch < 4; epoch++) {
		target_call(&target, read_pages, address, THIRD);
		target_call(&target, read_and_write, address + THIRD * PAGE, THIRD);
		target_call(&target, write_pages, address + 2 * THIRD * PAGE, THIRD);
		target_call(&target, read_and_write, address + 2 * THIRD * PAGE, THIRD);
		check_flags(&sampler, address, 2 * THIRD, THIRD, THIRD);
		sampler_epoch(&sampler);
	}
	/* after the session, the target can write all pages, even those that were write-protected */
	target_call(&target, read_pages, address, PAGES);
	sampler_count(&sampler, address, PAGES, ANY_NODE);
	sampler_close(&sampler);
	target_call(&target, write_pages, address, PAGES);
	CHECK(target_call(&target, read_pages, address, PAGES) == PAGES * (PAGES - 1) / 2, "data");
	printf("writes: %lu pages written after a read, all seen\n", 4 * THIRD);
	target_stop(&target);
}

/* Reads the pages repeatedly for some milliseconds. */
static uint64_t read_for(uint64_t address, uint64_t milliseconds)
{
	struct timespec begin, now;
	uint64_t passed;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		read_pages(address, THIRD);
		clock_gettime(CLOCK_MONOTONIC, &now);
		passed = (now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000;
	} while (passed < milliseconds);
	return 0;
}

void check_again(void)
{
	struct target target = target_start();
	uint64_t address = target_call(&target, map_pages, PAGES, 1);
	struct sampler sampler = sampler_open_as((struct sentinel_attach){
		.pid = target.pid,
		.log_records = 1 << 18,
		.rearm_us = 2000,
	});
	uint64_t found[32], rounds;

	sampler_add(&sampler, address, PAGES);
	sampler_arm(&sampler, address, PAGES);
	target_call(&target, read_for, address, 100);
	sampler_count_flags(&sampler, address, THIRD, found);
	CHECK(!found[AGAIN], "%lu further accesses before the first epoch", found[AGAIN]);
	sampler_epoch(&sampler);
	target_call(&target, read_pages, address + 2 * THIRD * PAGE, THIRD);
	target_call(&target, read_for, address, 500);
	rounds = sampler_stats(&sampler).rearms;
	sampler_count_flags(&sampler, address, THIRD, found);
	CHECK(found[0] == THIRD, "%lu first accesses", found[0]);
	/*
	 * Each round of re-arming arms a page at most once, so a page has at most one
	 * further record per round. The check requires at least four further records per page
	 * on average, so that their number shows how often a page is accessed.
	 */
	CHECK(found[AGAIN] >= 4 * THIRD && found[AGAIN] <= rounds * THIRD,
	      "%lu further accesses in %lu rounds", found[AGAIN], rounds);
	sampler_epoch(&sampler);
	target_call(&target, read_pages, address, PAGES);
	sampler_count_flags(&sampler, address, PAGES, found);
	CHECK(found[0] == PAGES, "%lu accesses in the next epoch", found[0]);
	sampler_close(&sampler);
	CHECK(target_call(&target, read_pages, address, PAGES) == PAGES * (PAGES - 1) / 2, "data");
	printf("again: %lu rounds of re-arming in an epoch\n", rounds);
	target_stop(&target);
}

void check_age(void)
{
	struct target target = target_start();
	uint64_t address = target_call(&target, map_pages, PAGES, 1);
	struct sampler sampler = sampler_open(target.pid, 4096);
	struct sentinel_range range;
	uint64_t found[32];

	sampler_add(&sampler, address, PAGES);
	CHECK(!range_call(sampler.fd, SENTINEL_IOC_AGE, address, PAGES * PAGE, &range), "AGE");
	CHECK(range.pages_done == PAGES, "%llu pages were written", range.pages_done);
	for (int round = 0; round < 20; round++) {
		uint64_t hot = address + (round % 2 ? THIRD * PAGE : 0);

		sampler_count(&sampler, address, PAGES, ANY_NODE);
		target_call(&target, read_pages, hot, THIRD);
		CHECK(!range_call(sampler.fd, SENTINEL_IOC_AGE, address, PAGES * PAGE, &range), "AGE");
		CHECK(range.pages_done == THIRD && range.pages_skipped == PAGES - THIRD, "round %d: %llu hot",
		      round, range.pages_done);
		sampler_count_flags(&sampler, hot, THIRD, found);
		CHECK(found[SENTINEL_ACCESS_AGED] == THIRD, "round %d: %lu logged", round,
		      found[SENTINEL_ACCESS_AGED]);
	}
	/* an access to an armed page still takes a fault; AGE reports such a page as accessed, too */
	sampler_arm(&sampler, address, PAGES);
	target_call(&target, read_pages, address, THIRD);
	CHECK(!range_call(sampler.fd, SENTINEL_IOC_AGE, address, PAGES * PAGE, &range), "AGE");
	CHECK(range.pages_done == THIRD, "%llu armed pages were hot", range.pages_done);
	sampler_count_flags(&sampler, address, PAGES, found);
	CHECK(found[0] == THIRD && found[SENTINEL_ACCESS_AGED] == THIRD, "%lu hit, %lu aged", found[0],
	      found[SENTINEL_ACCESS_AGED]);
	printf("age: %lu hot pages of %lu found 20 times, without a fault\n", THIRD, PAGES);
	sampler_close(&sampler);
	target_stop(&target);
}
