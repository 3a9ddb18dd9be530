// SPDX-License-Identifier: Apache-2.0
/* Compares the log with known accesses, by page and epoch. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#define PAGES 4096u
#define EPOCHS 24u
#define THREADS 2u

enum access { NONE, READ, WRITE, READ_WRITE, WRITE_READ };

static enum access planned(uint32_t page, uint32_t epoch)
{
	uint32_t hash = mix(page, epoch);

	return hash & 1 ? (enum access)(READ + (hash >> 8) % 4) : NONE;
}

struct work {
	uint64_t address;
	uint32_t epoch;
	uint32_t thread;
};

/*
 * All threads access every eighth page at the same time. Each of the other pages belongs to one
 * thread.
 */
static void *access_pages(void *argument)
{
	struct work *work = argument;

	for (uint32_t i = 0; i < PAGES; i++) {
		uint32_t page = i * 1031 % PAGES;
		volatile uint64_t *word = (void *)(work->address + page * PAGE);
		enum access access = planned(page, work->epoch);

		if (page % 8 && page % THREADS != work->thread)
			continue;
		if (access == READ || access == READ_WRITE)
			(void)word[1];
		if (access == WRITE || access == READ_WRITE || access == WRITE_READ)
			word[page % 512] = work->epoch;
		if (access == WRITE_READ)
			(void)word[1];
	}
	return NULL;
}

/* Runs all epochs as a training does: accesses, then the ioctl on the epoch fd. */
static uint64_t all_epochs(uint64_t address, uint64_t unused)
{
	(void)unused;
	for (uint32_t epoch = 1; epoch <= EPOCHS; epoch++) {
		struct work work[THREADS];
		pthread_t thread[THREADS];

		for (uint32_t i = 0; i < THREADS; i++) {
			work[i] = (struct work){address, epoch, i};
			CHECK(!pthread_create(&thread[i], NULL, access_pages, &work[i]), "thread");
		}
		for (uint32_t i = 0; i < THREADS; i++)
			pthread_join(thread[i], NULL);
		CHECK(epoch_by_fd(0, 0) == epoch + 1, "epoch %u", epoch);
	}
	return 0;
}

static uint64_t wrong_words(uint64_t address, uint64_t unused)
{
	uint64_t wrong = 0;

	(void)unused;
	for (uint32_t page = 0; page < PAGES; page++) {
		uint64_t last = page % 512 ? 0 : page;

		for (uint32_t epoch = 1; epoch <= EPOCHS; epoch++) {
			if (planned(page, epoch) >= WRITE)
				last = epoch;
		}
		wrong += ((uint64_t *)(address + page * PAGE))[page % 512] != last;
	}
	return wrong;
}

struct score {
	uint64_t expected, logged, hit, twice, out_of_range, wrong_write, wrong_node;
};

static struct score compare(struct sampler *sampler, uint64_t address)
{
	static uint8_t seen[EPOCHS + 1][PAGES];
	struct sentinel_access *records;
	struct score score = {.logged = sampler_drain(sampler, &records)};

	for (size_t i = 0; i < score.logged; i++) {
		uint64_t page = records[i].page - address / PAGE;
		uint32_t epoch = records[i].epoch;
		enum access access;

		if (page >= PAGES || epoch < 1 || epoch > EPOCHS) {
			score.out_of_range++;
			continue;
		}
		access = planned(page, epoch);
		score.twice += seen[epoch][page]++ > 0;
		score.hit += access != NONE;
		score.wrong_write += !(records[i].flags & SENTINEL_ACCESS_WRITE) !=
				     (access == READ || access == READ_WRITE);
		score.wrong_node += records[i].node != 0;
	}
	for (uint32_t epoch = 1; epoch <= EPOCHS; epoch++) {
		for (uint32_t page = 0; page < PAGES; page++)
			score.expected += planned(page, epoch) != NONE;
	}
	free(records);
	return score;
}

void check_accesses(void)
{
	struct target target = target_start();
	uint64_t address = target_call(&target, map_pages, PAGES, 0);
	struct sampler sampler;
	struct sentinel_range armed;
	struct sentinel_stats stats;
	struct score score;
	double recall, precision;

	target_call(&target, bind_pages, address, PAGES << 8);
	target_call(&target, write_pages, address, PAGES);
	sampler = sampler_open(target.pid, 1 << 17);
	sampler_add(&sampler, address, PAGES);
	armed = sampler_arm(&sampler, address, PAGES);
	CHECK(armed.pages_done == PAGES && armed.pages_skipped == 0, "%llu armed, %llu skipped",
	      armed.pages_done, armed.pages_skipped);
	CHECK(sampler_stats(&sampler).armed_pages == PAGES, "armed_pages");
	sampler_epoch_fd(&sampler, &target);
	target_call(&target, all_epochs, address, 0);

	score = compare(&sampler, address);
	stats = sampler_stats(&sampler);
	recall = (double)(score.hit - score.twice) / score.expected;
	precision = (double)(score.hit - score.twice) / score.logged;
	printf("accesses: %u pages x %u epochs, %u threads: %lu accesses, %lu logged, recall %.6f, "
	       "precision %.6f; %lu twice, %lu out of range, %lu wrong write flags, %lu wrong nodes\n",
	       PAGES, EPOCHS, THREADS, score.expected, score.logged, recall, precision, score.twice,
	       score.out_of_range, score.wrong_write, score.wrong_node);
	CHECK(recall >= 0.999, "%f", recall);
	CHECK(precision >= 0.999, "%f", precision);
	CHECK(!score.twice && !score.out_of_range && !score.wrong_write && !score.wrong_node, "see above");
	CHECK(stats.hits == score.logged && !stats.births && !stats.lost, "%llu hits, %llu births, %llu lost",
	      stats.hits, stats.births, stats.lost);
	CHECK(stats.armed_pages == PAGES, "%llu armed after an epoch", stats.armed_pages);
	CHECK(target_call(&target, wrong_words, address, 0) == 0, "data");
	sampler_close(&sampler);
	CHECK(target_call(&target, wrong_words, address, 0) == 0, "data after close");
	target_stop(&target);
}
