// SPDX-License-Identifier: Apache-2.0
/* Checks the node in each access record, also after moves, and the count of resident pages by node. */
#define _GNU_SOURCE
#include "check.h"

#include <string.h>

#define PAGES 1024ul
#define HALF (PAGES / 2)

/* A target with HALF pages on node 0, then HALF on node 1, all armed. */
static uint64_t start_on_two_nodes(struct target *target, struct sampler *sampler)
{
	uint64_t address;

	*target = target_start();
	address = target_call(target, map_pages, PAGES, 0);
	/* MPOL_BIND applies to the first touch; move_pages() can still move pages to any node */
	target_call(target, bind_pages, address, HALF << 8);
	target_call(target, bind_pages, address + HALF * PAGE, HALF << 8 | 1);
	target_call(target, write_pages, address, PAGES);
	*sampler = sampler_open(target->pid, 1 << 14);
	sampler_add(sampler, address, PAGES);
	CHECK(sampler_arm(sampler, address, PAGES).pages_done == PAGES, "arm");
	return address;
}

static void check_served(struct sampler *sampler, uint64_t address, uint64_t pages, int node)
{
	struct sentinel_access *records;
	size_t count = sampler_drain(sampler, &records);

	CHECK(count == pages, "%zu records, not %lu", count, pages);
	for (size_t i = 0; i < count; i++) {
		CHECK(records[i].page - address / PAGE < pages, "page %llx", records[i].page);
		CHECK(records[i].node == node, "page %llx: node %u", records[i].page, records[i].node);
	}
	free(records);
}

void check_nodes(void)
{
	const uint64_t sum = PAGES * (PAGES - 1) / 2;
	struct sampler sampler;
	struct target target;
	uint64_t address = start_on_two_nodes(&target, &sampler);
	uint64_t upper = address + HALF * PAGE;

	CHECK(target_call(&target, read_pages, address, HALF) == HALF * (HALF - 1) / 2, "data");
	check_served(&sampler, address, HALF, 0);
	target_call(&target, read_pages, upper, HALF);
	check_served(&sampler, upper, HALF, 1);
	sampler_epoch(&sampler);

	for (int round = 0; round < 3; round++) {
		struct sentinel_range range = sampler_disarm(&sampler, address, PAGES);

		CHECK(range.pages_done == PAGES, "%llu disarmed", range.pages_done);
		CHECK(sampler_stats(&sampler).armed_pages == 0, "armed pages after DISARM");
		move_to(target.pid, address, HALF, 1 - round % 2);
		move_to(target.pid, upper, HALF, round % 2);
		range = sampler_arm(&sampler, address, PAGES);
		CHECK(range.pages_done == PAGES, "%llu armed", range.pages_done);
		target_call(&target, read_pages, address, HALF);
		check_served(&sampler, address, HALF, 1 - round % 2);
		target_call(&target, write_pages, upper, HALF);
		check_served(&sampler, upper, HALF, round % 2);
		target_call(&target, write_pages, address, PAGES);
		CHECK(sampler_count(&sampler, address, PAGES, ANY_NODE) == 0, "once an epoch");
		sampler_epoch(&sampler);
		CHECK(target_call(&target, read_pages, address, PAGES) == sum, "data");
		CHECK(sampler_count(&sampler, address, PAGES, ANY_NODE) == PAGES, "epoch");
		sampler_epoch(&sampler);
	}
	printf("nodes: %lu pages moved back and forth 3 times; each access has its page's node\n", PAGES);
	sampler_close(&sampler);
	target_stop(&target);
}

/*
 * A disarmed part of a watched range stays disarmed across epochs until it is armed again, even
 * if pages are born in it.
 */
void check_disarm(void)
{
	struct sampler sampler;
	struct target target;
	uint64_t address = start_on_two_nodes(&target, &sampler);
	uint64_t part = address + 100 * PAGE;
	uint64_t absent = target_call(&target, map_pages, 2048, 0);

	sampler_add(&sampler, absent, 2048);
	sampler_arm(&sampler, absent, 2048);
	target_call(&target, read_pages, address, PAGES);
	CHECK(sampler_disarm(&sampler, part, 200).pages_done == 0, "touched pages are armed");
	sampler_disarm(&sampler, absent + 10 * PAGE, 1500);
	sampler_epoch(&sampler);
	CHECK(sampler_stats(&sampler).armed_pages == PAGES - 200, "the part is armed");
	sampler_count(&sampler, address, PAGES, ANY_NODE);

	target_call(&target, read_pages, address, PAGES);
	target_call(&target, write_pages, absent, 2048);
	sampler_epoch(&sampler);
	CHECK(sampler_stats(&sampler).births == 548, "births");
	CHECK(sampler_count(&sampler, address, PAGES, ANY_NODE) == PAGES - 200, "accesses");
	CHECK(sampler_arm(&sampler, part, 200).pages_done == 200, "arm");
	CHECK(sampler_arm(&sampler, absent, 2048).pages_done == 1500, "arm");
	target_call(&target, read_pages, address, PAGES);
	CHECK(sampler_count(&sampler, address, PAGES, ANY_NODE) == PAGES, "accesses");

	sampler_epoch(&sampler);
	CHECK(sampler_stats(&sampler).armed_pages == PAGES + 2048, "all");
	CHECK(!range_call(sampler.fd, SENTINEL_IOC_REMOVE_RANGE, absent, 2048 * PAGE, NULL), "REMOVE_RANGE");
	CHECK(sampler_stats(&sampler).armed_pages == PAGES, "the removed range is armed");
	CHECK(target_call(&target, minor_faults, absent, 2048) == 0, "faults in the removed range");
	CHECK(target_call(&target, minor_faults, address, PAGES) == 0,
	      "faults that the module resolves count");
	sampler_close(&sampler);
	target_stop(&target);
}

static void check_resident(struct sampler *sampler, uint64_t on_0, uint64_t on_1)
{
	struct sentinel_access *records;
	struct sentinel_epoch epoch;
	uint64_t pages[2] = {0};
	size_t count, nodes = 0;

	CHECK(!epoch_call(sampler->fd, SENTINEL_EPOCH_RESIDENCY, &epoch), "EPOCH");
	count = sampler_drain(sampler, &records);
	for (size_t i = 0; i < count; i++) {
		if (!(records[i].flags & SENTINEL_ACCESS_RESIDENCY))
			continue;
		CHECK(records[i].node < 2 && records[i].epoch == epoch.epoch, "node %u epoch %u",
		      records[i].node, records[i].epoch);
		pages[records[i].node] = records[i].page;
		nodes++;
	}
	free(records);
	CHECK(nodes == 2, "%zu nodes", nodes);
	CHECK(pages[0] == on_0 && pages[1] == on_1, "%lu and %lu pages, not %lu and %lu", pages[0], pages[1],
	      on_0, on_1);
}

void check_residency(void)
{
	struct sampler sampler;
	struct target target;
	uint64_t address = start_on_two_nodes(&target, &sampler);

	check_resident(&sampler, HALF, HALF);
	target_call(&target, read_pages, address, 100);
	check_resident(&sampler, HALF, HALF);
	sampler_disarm(&sampler, address, 300);
	move_to(target.pid, address, 300, 1);
	check_resident(&sampler, HALF - 300, HALF + 300);
	sampler_close(&sampler);
	target_stop(&target);
}
