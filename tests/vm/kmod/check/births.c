// SPDX-License-Identifier: Apache-2.0
/* Checks records of pages that are touched, dropped and touched again, and each birth's node. */
#define _GNU_SOURCE
#include "check.h"

#include <string.h>
#include <sys/mman.h>

#define PAGES 1100u
#define EPOCHS 16u

/* The operations on a page in an epoch. If the page is absent, READ writes to it instead. */
enum life { REST, READ, WRITE, WRITE_DROP, DROP, DROP_WRITE, WRITE_DROP_WRITE, LIVES };

static enum life planned(uint32_t page, uint32_t epoch)
{
	return mix(page, epoch + 1000) >> 7 & 1 ? (enum life)(mix(page, epoch) % LIVES) : REST;
}

static int node_of_page(uint32_t page)
{
	return page >= PAGES / 2;
}

static bool present_at_start(uint32_t page)
{
	return page % 3 == 0;
}

/* The visible effects of an epoch on a page: its first access, and its presence at the end. */
struct seen {
	bool access, birth, write, present;
};

static struct seen model(enum life life, bool present)
{
	bool drops_first = life == DROP || life == DROP_WRITE;
	struct seen seen = {
		.access = life != REST && life != DROP,
		.birth = life != REST && life != DROP && (!present || drops_first),
		.present = life == REST ? present : life != DROP && life != WRITE_DROP,
	};

	seen.write = seen.access && (life != READ || !present);
	return seen;
}

static uint64_t live_epoch(uint64_t address, uint64_t epoch)
{
	static bool present[PAGES];

	for (uint32_t i = 0; i < PAGES; i++) {
		uint32_t page = i * 7 % PAGES;
		volatile uint64_t *word = (void *)(address + page * PAGE);
		enum life life = planned(page, epoch);

		if (epoch == 1)
			present[page] = present_at_start(page);
		if (life == DROP || life == DROP_WRITE)
			madvise((void *)word, PAGE, MADV_DONTNEED);
		if (life == READ && present[page])
			(void)*word;
		else if (life != REST && life != DROP)
			*word = epoch;
		if (life == WRITE_DROP || life == WRITE_DROP_WRITE)
			madvise((void *)word, PAGE, MADV_DONTNEED);
		if (life == WRITE_DROP_WRITE)
			*word = epoch;
		present[page] = model(life, present[page]).present;
	}
	return epoch_by_fd(0, 0);
}

static uint64_t populate_start(uint64_t address, uint64_t unused)
{
	(void)unused;
	for (uint32_t page = 0; page < PAGES; page++) {
		if (present_at_start(page))
			write_pages(address + page * PAGE, 1);
	}
	return 0;
}

static uint8_t flags_of(struct seen seen)
{
	return (seen.write ? SENTINEL_ACCESS_WRITE : 0) | (seen.birth ? SENTINEL_ACCESS_BIRTH : 0);
}

void check_births(void)
{
	static struct sentinel_access *found[EPOCHS + 1][PAGES];
	struct target target = target_start();
	uint64_t address = target_call(&target, map_pages, PAGES, 0);
	uint64_t expected = 0, births = 0, hit = 0;
	struct sentinel_access *records;
	struct sentinel_stats stats;
	struct sentinel_range armed;
	struct sampler sampler;
	size_t logged;
	bool present[PAGES];

	target_call(&target, bind_pages, address, (PAGES / 2) << 8);
	target_call(&target, bind_pages, address + PAGES / 2 * PAGE, (PAGES / 2) << 8 | 1);
	target_call(&target, populate_start, address, 0);
	sampler = sampler_open(target.pid, 1 << 15);
	sampler_add(&sampler, address, PAGES);
	armed = sampler_arm(&sampler, address, PAGES);
	CHECK(armed.pages_done == (PAGES + 2) / 3, "%llu armed", armed.pages_done);
	CHECK(armed.pages_done + armed.pages_skipped == PAGES, "%llu skipped", armed.pages_skipped);
	sampler_epoch_fd(&sampler, &target);
	for (uint32_t epoch = 1; epoch <= EPOCHS; epoch++)
		CHECK(target_call(&target, live_epoch, address, epoch) == epoch + 1, "epoch %u", epoch);

	logged = sampler_drain(&sampler, &records);
	for (size_t i = 0; i < logged; i++) {
		uint64_t page = records[i].page - address / PAGE;

		CHECK(page < PAGES && records[i].epoch <= EPOCHS, "page %lu epoch %u", page,
		      records[i].epoch);
		CHECK(!found[records[i].epoch][page], "page %lu twice in epoch %u", page, records[i].epoch);
		found[records[i].epoch][page] = &records[i];
	}
	for (uint32_t page = 0; page < PAGES; page++)
		present[page] = present_at_start(page);
	for (uint32_t epoch = 1; epoch <= EPOCHS; epoch++) {
		for (uint32_t page = 0; page < PAGES; page++) {
			struct seen seen = model(planned(page, epoch), present[page]);
			struct sentinel_access *record = found[epoch][page];

			present[page] = seen.present;
			expected += seen.access;
			births += seen.birth;
			if (!seen.access || !record)
				continue;
			hit++;
			CHECK(record->flags == flags_of(seen), "page %u epoch %u life %d: flags %u, not %u",
			      page, epoch, planned(page, epoch), record->flags, flags_of(seen));
			CHECK(record->node == node_of_page(page), "page %u epoch %u: node %u", page, epoch,
			      record->node);
		}
	}
	stats = sampler_stats(&sampler);
	printf("births: %u pages x %u epochs: %lu accesses, %lu of them births, %zu logged, recall %.6f, "
	       "precision %.6f\n",
	       PAGES, EPOCHS, expected, births, logged, (double)hit / expected, (double)hit / logged);
	CHECK(hit >= 0.999 * expected && hit >= 0.999 * logged, "see above");
	CHECK(stats.births == births, "%llu counted", stats.births);
	free(records);
	sampler_close(&sampler);
	target_stop(&target);
}

/* A read of an absent page maps the zero page: a birth without a node. A later write is another birth. */
void check_zero_page(void)
{
	struct target target = target_start();
	uint64_t address = target_call(&target, map_pages, 8, 0);
	struct sampler sampler = sampler_open(target.pid, 4096);
	struct sentinel_access *records;
	size_t count;

	sampler_add(&sampler, address, 8);
	CHECK(sampler_arm(&sampler, address, 8).pages_done == 0, "an absent page was armed");
	target_call(&target, read_pages, address, 8);
	sampler_epoch(&sampler);
	target_call(&target, write_pages, address, 8);
	sampler_epoch(&sampler);
	CHECK(sampler_stats(&sampler).armed_pages == 8, "not all born pages are armed");
	target_call(&target, read_pages, address, 8);
	count = sampler_drain(&sampler, &records);
	CHECK(count == 24, "%zu records", count);
	for (size_t i = 0; i < count; i++) {
		static const uint8_t flags[] = {SENTINEL_ACCESS_BIRTH,
						SENTINEL_ACCESS_BIRTH | SENTINEL_ACCESS_WRITE, 0};

		CHECK(records[i].epoch == 1 + i / 8, "record %zu: epoch %u", i, records[i].epoch);
		CHECK(records[i].flags == flags[i / 8], "record %zu: flags %u", i, records[i].flags);
		CHECK((records[i].node == 255) == (i < 8), "record %zu: node %u", i, records[i].node);
	}
	free(records);
	sampler_close(&sampler);
	target_stop(&target);
}

static uint64_t page_out(uint64_t address, uint64_t pages)
{
	CHECK(!madvise((void *)address, pages * PAGE, MADV_PAGEOUT), "MADV_PAGEOUT");
	return 0;
}

/* A swap-in is an access and not a birth; the record has the page's new node. */
void check_swap(void)
{
	struct target target = target_start();
	uint64_t address = target_call(&target, map_pages, 256, 1);
	struct sampler sampler = sampler_open(target.pid, 4096);
	struct sentinel_access *records;
	size_t count, late = 0;

	sampler_add(&sampler, address, 256);
	sampler_arm(&sampler, address, 256);
	target_call(&target, page_out, address, 256);
	CHECK(target_call(&target, read_pages, address, 256) == 256 * 255 / 2, "data");
	late = 256 - sampler.log->head;
	sampler_epoch(&sampler);
	count = sampler_drain(&sampler, &records);
	for (size_t i = 0; i < count; i++)
		CHECK(records[i].epoch == 1 && records[i].flags == 0 && records[i].node < 2,
		      "epoch %u, flags %u, node %u", records[i].epoch, records[i].flags, records[i].node);
	free(records);
	printf("swap: %zu of 256 pages came back from swap\n", late);
	CHECK(count == 256 && late > 0, "%zu records, %zu late", count, late);
	CHECK(sampler_stats(&sampler).births == 0 && sampler_stats(&sampler).armed_pages == 256, "stats");
	sampler_close(&sampler);
	target_stop(&target);
}
