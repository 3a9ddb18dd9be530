// SPDX-License-Identifier: Apache-2.0
/*
 * The target's verbs that access pages. They record each access in shared->truth.
 * Each thread has its own zone in every page and writes only there. So any thread can
 * access any page at any time and check the values that it reads.
 */
#define _GNU_SOURCE
#include "truth.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ZONE_WORDS 16u
#define ZONE_BYTES (ZONE_WORDS * sizeof(uint64_t))
#define STRADDLE_OFFSET (PAGE - 4)

uint32_t shadow[THREADS][ARENA_PAGES];

static volatile uint64_t *zone(uint32_t page, uint32_t thread)
{
	return (void *)(shared->arena + page * PAGE + 64 + thread * 1024);
}

static uint64_t value(uint32_t seq, uint32_t word)
{
	return seq ? (uint64_t)seq << 8 | word : 0;
}

void wrong_word(const char *what, uint32_t page)
{
	if (__atomic_fetch_add(&shared->wrong, 1, __ATOMIC_RELAXED) < 10)
		printf("wrong %s page %u epoch %u\n", what, page, shared->epoch);
}

static void note_access(struct worker *worker, uint32_t page, uint8_t what)
{
	uint8_t *truth = &shared->truth[worker->thread][shared->epoch][page];

	if (!*truth)
		*truth = what << 2;
	*truth |= what;
}

static void read_one(struct worker *worker, uint32_t page)
{
	note_access(worker, page, TRUTH_READ);
	if (*zone(page, worker->thread) != value(shadow[worker->thread][page], 0))
		wrong_word("read", page);
}

static uint32_t next_seq(struct worker *worker, uint32_t page)
{
	shadow[worker->thread][page] = ++worker->seq;
	return worker->seq;
}

static void write_one(struct worker *worker, uint32_t page)
{
	uint32_t seq = next_seq(worker, page);

	note_access(worker, page, TRUTH_WRITE);
	for (uint32_t i = 0; i < ZONE_WORDS; i++)
		zone(page, worker->thread)[i] = value(seq, i);
}

static void read_write_one(struct worker *worker, uint32_t page)
{
	read_one(worker, page);
	write_one(worker, page);
}

static void write_read_one(struct worker *worker, uint32_t page)
{
	write_one(worker, page);
	read_one(worker, page);
}

static void exchange_one(struct worker *worker, uint32_t page)
{
	uint64_t before = value(shadow[worker->thread][page], 0);
	uint32_t seq = next_seq(worker, page);

	note_access(worker, page, TRUTH_WRITE);
	if (__atomic_exchange_n(zone(page, worker->thread), value(seq, 0), __ATOMIC_SEQ_CST) != before)
		wrong_word("exchange", page);
	note_access(worker, page, TRUTH_READ);
	for (uint32_t i = 1; i < ZONE_WORDS; i++)
		zone(page, worker->thread)[i] = value(seq, i);
}

static void kernel_read_one(struct worker *worker, uint32_t page)
{
	uint64_t words[ZONE_WORDS];

	note_access(worker, page, TRUTH_READ);
	CHECK(write(worker->pipe[1], (void *)zone(page, worker->thread), ZONE_BYTES) == ZONE_BYTES, "%s",
	      strerror(errno));
	CHECK(read(worker->pipe[0], words, ZONE_BYTES) == ZONE_BYTES, "%s", strerror(errno));
	for (uint32_t i = 0; i < ZONE_WORDS; i++) {
		if (words[i] != value(shadow[worker->thread][page], i))
			wrong_word("kernel-read", page);
	}
}

static void kernel_write_one(struct worker *worker, uint32_t page)
{
	uint32_t seq = next_seq(worker, page);
	uint64_t words[ZONE_WORDS];

	note_access(worker, page, TRUTH_WRITE);
	for (uint32_t i = 0; i < ZONE_WORDS; i++)
		words[i] = value(seq, i);
	CHECK(write(worker->pipe[1], words, ZONE_BYTES) == ZONE_BYTES, "%s", strerror(errno));
	CHECK(read(worker->pipe[0], (void *)zone(page, worker->thread), ZONE_BYTES) == ZONE_BYTES, "%s",
	      strerror(errno));
}

static void straddle_one(struct worker *worker, uint32_t page)
{
	uint64_t word;

	note_access(worker, page, TRUTH_READ);
	note_access(worker, page + 1, TRUTH_READ);
	asm volatile("movq (%1), %0" : "=r"(word) : "r"(shared->arena + page * PAGE + STRADDLE_OFFSET));
	if (word)
		wrong_word("straddle", page);
}

static void each(struct worker *worker, const long *arg, void (*one)(struct worker *, uint32_t))
{
	long end = arg[0] + arg[1] * arg[2];

	CHECK(arg[0] >= 0 && arg[1] >= 0 && arg[2] > 0 && end <= ARENA_PAGES, "pages %ld %ld %ld", arg[0],
	      arg[1], arg[2]);
	for (long page = arg[0]; page < end; page += arg[2])
		one(worker, page);
}

void run_read(struct worker *worker, const long *arg)
{
	each(worker, arg, read_one);
}

void run_write(struct worker *worker, const long *arg)
{
	each(worker, arg, write_one);
}

void run_read_write(struct worker *worker, const long *arg)
{
	each(worker, arg, read_write_one);
}

void run_write_read(struct worker *worker, const long *arg)
{
	each(worker, arg, write_read_one);
}

void run_exchange(struct worker *worker, const long *arg)
{
	each(worker, arg, exchange_one);
}

void run_kernel_read(struct worker *worker, const long *arg)
{
	each(worker, arg, kernel_read_one);
}

void run_kernel_write(struct worker *worker, const long *arg)
{
	each(worker, arg, kernel_write_one);
}

void run_straddle(struct worker *worker, const long *arg)
{
	each(worker, arg, straddle_one);
}

/* Checks every byte of the page: it must hold the last writes of all threads, and zeros elsewhere. */
static void verify_page(uint32_t page)
{
	static uint64_t expected[PAGE / sizeof(uint64_t)];

	memset(expected, 0, sizeof(expected));
	for (uint32_t thread = 0; thread < THREADS; thread++) {
		for (uint32_t i = 0; i < ZONE_WORDS; i++)
			expected[8 + thread * 128 + i] = value(shadow[thread][page], i);
	}
	if (memcmp(expected, (void *)(shared->arena + page * PAGE), PAGE))
		wrong_word("verify", page);
}

uint64_t target_verify(uint64_t unused, uint64_t unused2)
{
	(void)unused;
	(void)unused2;
	for (uint32_t i = 0; i < program.regions; i++) {
		struct region *region = &program.region[i];

		for (uint32_t page = region->start; page < region->start + region->count; page++)
			verify_page(page);
	}
	fflush(stdout);
	return 0;
}

/* In a forked child: checks that the thread's zones are unchanged since the fork, and writes to them. */
bool check_copies(uint32_t start, uint32_t count, uint32_t thread)
{
	bool right = true;

	for (int round = 0; round < 2; round++) {
		for (uint32_t page = start; page < start + count; page++) {
			for (uint32_t i = 0; i < ZONE_WORDS; i++) {
				uint64_t before = value(shadow[thread][page], i);
				volatile uint64_t *word = &zone(page, thread)[i];

				right &= *word == (round ? ~before : before);
				*word = ~before;
			}
		}
	}
	return right;
}
