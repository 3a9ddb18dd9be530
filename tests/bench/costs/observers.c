// SPDX-License-Identifier: Apache-2.0
/*
 * Runs one program under each observer of page accesses. Measures the
 * instructions that the observer adds and the accesses that it detects.
 *
 * The program runs in epochs. In each epoch it reads a quarter of the pages, writes another
 * quarter, and computes. The epoch's number determines both quarters.
 */
#define _GNU_SOURCE
#include "costs.h"
#include "observers.h"

#include <string.h>
#include <unistd.h>

#define EPOCHS 20
#define WORK_TURNS 390625ul /* loop iterations of 64 instructions; together 25 ms of guest time */

enum { UNTOUCHED, READ, WRITTEN };

static const struct observer *const observers[] = {
	&observer_module,     &observer_module_precise, &observer_module_age,
	&observer_soft_dirty, &observer_wp_async,	&observer_mprotect,
	&observer_damon,      &observer_perf_faults,	&observer_perf_memory,
};

static unsigned int done_to(unsigned int epoch, uint64_t page)
{
	switch (mix(epoch, page) & 3) {
	case 0:
		return READ;
	case 1:
		return WRITTEN;
	default:
		return UNTOUCHED;
	}
}

static void compute(void)
{
	uint64_t turns = WORK_TURNS;

	__asm__ volatile("1: .rept 62\n\tadd $1, %%eax\n\t.endr\n\tdec %0\n\tjnz 1b" : "+r"(turns) : : "eax");
}

static void touch(char *memory, const uint8_t *what)
{
	for (uint64_t page = 0; page < pages; page++) {
		volatile uint64_t *word = (volatile uint64_t *)(memory + page * PAGE);

		if (what[page] == READ)
			(void)*word;
		else if (what[page] == WRITTEN)
			*word = page;
	}
}

/* An observer's reports over all epochs, compared with the truth. */
struct score {
	uint64_t read, read_seen;
	uint64_t written, written_seen, written_as_read;
	uint64_t wrong; /* pages reported as touched or written although they were not */
};

static void compare(struct score *score, const uint8_t *truth, const uint8_t *seen)
{
	for (uint64_t page = 0; page < pages; page++) {
		switch (truth[page]) {
		case READ:
			score->read++;
			score->read_seen += seen[page] != 0;
			score->wrong += (seen[page] & SEEN_WRITTEN) != 0;
			break;
		case WRITTEN:
			score->written++;
			score->written_seen += (seen[page] & SEEN_WRITTEN) != 0;
			score->written_as_read += seen[page] == SEEN;
			break;
		default:
			score->wrong += seen[page] != 0;
		}
	}
}

/* Returns how many instructions all epochs took: those of the program and of the observer. */
static uint64_t run(const struct observer *observer, struct score *score)
{
	char *memory = map_fresh(pages);
	uint8_t *truth = malloc(pages);
	uint8_t *seen = malloc(pages);
	uint64_t total = 0;

	memset(score, 0, sizeof(*score));
	memset(truth, 0, pages);
	memset(seen, 0, pages);
	write_pages((uint64_t)memory, pages);
	if (observer->begin)
		observer->begin(memory);
	for (unsigned int epoch = 0; epoch < EPOCHS; epoch++) {
		uint64_t begin;

		for (uint64_t page = 0; page < pages; page++)
			truth[page] = done_to(epoch, page);
		memset(seen, 0, pages);
		begin = instructions();
		if (observer->epoch_begin)
			observer->epoch_begin(memory);
		touch(memory, truth);
		compute();
		if (observer->epoch_end)
			observer->epoch_end(memory, seen);
		total += instructions() - begin;
		compare(score, truth, seen);
	}
	if (observer->end)
		observer->end(memory);
	unmap(memory, pages);
	free(truth);
	free(seen);
	return total;
}

static double share(uint64_t part, uint64_t whole)
{
	return whole ? (double)part / whole : 0;
}

static int ascending(const void *a, const void *b)
{
	uint64_t first = *(const uint64_t *)a;
	uint64_t second = *(const uint64_t *)b;

	return (first > second) - (first < second);
}

/*
 * Returns the median of the rounds' instruction counts, to exclude other activity in the guest.
 * The score is that of the last round.
 */
static uint64_t run_rounds(const struct observer *observer, struct score *score)
{
	uint64_t *total = calloc(rounds, sizeof(*total));
	uint64_t median;

	for (unsigned int round = 0; round < rounds; round++)
		total[round] = run(observer, score);
	qsort(total, rounds, sizeof(*total), ascending);
	median = total[rounds / 2];
	free(total);
	return median;
}

void cost_observers(void)
{
	static const struct observer none = {.name = "none"};
	struct score score;
	uint64_t plain = run_rounds(&none, &score);

	for (size_t i = 0; i < sizeof(observers) / sizeof(*observers); i++) {
		const struct observer *observer = observers[i];
		uint64_t observed;

		if (observer->missing && observer->missing()) {
			printf("{\"name\": \"%s\", \"missing\": \"%s\"}\n", observer->name,
			       observer->missing());
			continue;
		}
		observed = run_rounds(observer, &score);
		printf("{\"name\": \"%s\", \"plain\": %lu, \"observed\": %lu, "
		       "\"touched_pages\": %lu, \"seen_pages\": %lu, \"epochs\": %d, \"read_recall\": %.4f, "
		       "\"write_recall\": %.4f, \"writes_seen_as_reads\": %.4f, "
		       "\"wrongly_seen\": %lu}\n",
		       observer->name, plain, observed, score.read + score.written,
		       score.read_seen + score.written_seen + score.written_as_read, EPOCHS,
		       share(score.read_seen, score.read), share(score.written_seen, score.written),
		       share(score.written_as_read, score.written), score.wrong);
	}
}
