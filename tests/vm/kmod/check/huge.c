// SPDX-License-Identifier: Apache-2.0
/* Huge pages are armed, recorded and counted as a whole until they are split. */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE 512ul

static uint64_t map_huge(uint64_t bytes, uint64_t unused)
{
	char *map = mmap(NULL, bytes + HUGE * PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint64_t address = ((uint64_t)map + HUGE * PAGE - 1) / (HUGE * PAGE) * (HUGE * PAGE);

	(void)unused;
	CHECK(map != MAP_FAILED, "%s", strerror(errno));
	madvise((void *)address, bytes, MADV_HUGEPAGE);
	write_pages(address, bytes / PAGE);
	return address;
}

static uint64_t drop_page(uint64_t address, uint64_t unused)
{
	(void)unused;
	CHECK(!madvise((void *)address, PAGE, MADV_DONTNEED), "%s", strerror(errno));
	return 0;
}

static void expect_records(struct sampler *sampler, uint64_t address, const char *what, uint64_t reads,
			   uint64_t writes, uint64_t births, uint64_t unknown)
{
	uint64_t found[32];

	sampler_count_flags(sampler, address, 2 * HUGE, found);
	CHECK(found[0] == reads && found[SENTINEL_ACCESS_WRITE] == writes &&
		      found[SENTINEL_ACCESS_BIRTH] == births && found[SENTINEL_ACCESS_UNKNOWN] == unknown,
	      "%s: %lu read, %lu written, %lu born, %lu unknown", what, found[0],
	      found[SENTINEL_ACCESS_WRITE], found[SENTINEL_ACCESS_BIRTH], found[SENTINEL_ACCESS_UNKNOWN]);
}

void check_huge(void)
{
	struct target target = target_start();
	uint64_t address = target_call(&target, map_huge, 2 * HUGE * PAGE, 0);
	uint64_t second = address + HUGE * PAGE;
	struct sampler sampler = sampler_open(target.pid, 4096);
	struct sentinel_range range;

	sampler_add(&sampler, address, 2 * HUGE);
	range = sampler_arm(&sampler, address, 2 * HUGE);
	CHECK(range.pages_done == 2 * HUGE && !range.pages_skipped, "%llu armed: are huge pages off?",
	      range.pages_done);
	target_call(&target, read_pages, address + 7 * PAGE, 3);
	expect_records(&sampler, address, "a read", HUGE, 0, 0, 0);
	sampler_epoch(&sampler);
	expect_records(&sampler, address, "the rest of the epoch", 0, 0, 0, 0);
	target_call(&target, read_pages, second, 1);
	target_call(&target, write_pages, address, 1);
	expect_records(&sampler, address, "a read and a write", HUGE, HUGE, 0, 0);
	sampler_epoch(&sampler);

	/*
	 * The split unarms the pages of the second huge page, so they are unknown. The next epoch
	 * arms them one by one. The dropped page is unknown too: it may have been accessed between
	 * the split and the drop.
	 */
	target_call(&target, drop_page, second + 5 * PAGE, 0);
	sampler_epoch(&sampler);
	expect_records(&sampler, address, "a split", 0, 0, 0, HUGE);
	target_call(&target, read_pages, second, HUGE);
	sampler_epoch(&sampler);
	expect_records(&sampler, address, "small pages", HUGE - 1, 0, 1, 0);

	/*
	 * 10 pages of the first huge page are disarmed. The other 502 pages cannot be armed without
	 * these 10, so the 502 are unknown. The page dropped above now maps the zero page, so it is
	 * unknown too.
	 */
	range = sampler_disarm(&sampler, address, 10);
	CHECK(range.pages_done == 10 && !range.pages_skipped, "disarm: %llu done, %llu skipped",
	      range.pages_done, range.pages_skipped);
	target_call(&target, read_pages, address, HUGE);
	sampler_epoch(&sampler);
	expect_records(&sampler, address, "a disarmed part", 0, 0, 0, HUGE - 10 + 1);
	range = sampler_arm(&sampler, address, HUGE);
	target_call(&target, read_pages, address + 100 * PAGE, 1);
	CHECK(!epoch_call(sampler.fd, SENTINEL_EPOCH_RESIDENCY, NULL), "EPOCH");
	printf("huge: 2 MiB pages are armed, hit and disarmed as a whole, and by small pages after a "
	       "split\n");
	sampler_close(&sampler);
	CHECK(target_call(&target, read_pages, address, HUGE) == HUGE * (HUGE - 1) / 2, "data");
	target_stop(&target);
}
