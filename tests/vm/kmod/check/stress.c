// SPDX-License-Identifier: Apache-2.0
/* Runs writers, forks, drops, mprotect, epochs and moves in parallel; the data must stay intact. */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 1200ul
#define WRITERS 2u
#define ROUNDS 150
#define WORDS 4
#define SCRATCH 1600ul /* pages after the first PAGES; unmapping them frees their page tables */

static volatile bool stop;
static uint64_t base;
static uint64_t shadow[PAGES][WORDS]; /* expected words of each page; not in the watched range */

/* Checks, writes and drops this writer's pages. Returns the number of wrong words. */
static void *write_and_check(void *argument)
{
	uint32_t writer = (uintptr_t)argument;
	uint64_t wrong = 0;

	for (uint32_t turn = 1; !stop; turn++) {
		uint32_t page = mix(turn, writer) % (PAGES / WRITERS) * WRITERS + writer;

		volatile uint64_t *words = (void *)(base + page * PAGE);

		for (int i = 0; i < WORDS; i++)
			wrong += words[i * 100] != shadow[page][i];
		if (turn % 17 == 0) {
			madvise((void *)words, PAGE, MADV_DONTNEED);
			memset(shadow[page], 0, sizeof(shadow[page]));
		} else if (turn % 3) {
			words[turn % WORDS * 100] = turn;
			shadow[page][turn % WORDS] = turn;
		}
	}
	return (void *)wrong;
}

/* Unmaps the scratch pages, maps them again and touches some. Returns the number of failures. */
static uint64_t remap_scratch(uint32_t turn)
{
	char *scratch = (char *)base + PAGES * PAGE;
	uint64_t failed = munmap(scratch, SCRATCH * PAGE) != 0;

	failed += mmap(scratch, SCRATCH * PAGE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != scratch;
	madvise(scratch, SCRATCH * PAGE, MADV_NOHUGEPAGE);
	for (uint32_t i = 0; i < 200; i++)
		scratch[mix(turn, i) % SCRATCH * PAGE]++;
	return failed;
}

/* Protects, reclaims and unmaps pages, and forks, until `stop` is set. Returns the number of failures. */
static void *disturb(void *argument)
{
	uint64_t failed = 0;

	(void)argument;
	for (uint32_t turn = 0; !stop; turn++) {
		uint64_t part = base + mix(turn, 99) % (PAGES - 64) * PAGE;
		int status;
		pid_t worker;

		failed += mprotect((void *)part, 64 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) != 0;
		failed += mprotect((void *)part, 64 * PAGE, PROT_READ | PROT_WRITE) != 0;
		madvise((void *)part, 64 * PAGE, MADV_PAGEOUT);
		failed += remap_scratch(turn);
		worker = fork();
		if (worker == 0) {
			for (uint64_t i = 0; i < 64; i++)
				*(volatile uint64_t *)(part + i * PAGE + 8) = ~i;
			_exit(0);
		}
		failed += waitpid(worker, &status, 0) != worker || status;
	}
	return (void *)failed;
}

static pthread_t threads[WRITERS + 1];

static uint64_t start_threads(uint64_t address, uint64_t unused)
{
	(void)unused;
	base = address;
	for (uintptr_t i = 0; i < WRITERS; i++)
		CHECK(!pthread_create(&threads[i], NULL, write_and_check, (void *)i), "thread");
	CHECK(!pthread_create(&threads[WRITERS], NULL, disturb, NULL), "thread");
	return 0;
}

static uint64_t stop_threads(uint64_t first, uint64_t second)
{
	uint64_t wrong = 0;

	(void)first;
	(void)second;
	stop = true;
	for (uint32_t i = 0; i <= WRITERS; i++) {
		void *result;

		pthread_join(threads[i], &result);
		wrong += (uintptr_t)result;
	}
	for (uint32_t page = 0; page < PAGES; page++) {
		for (int i = 0; i < WORDS; i++)
			wrong += ((uint64_t *)(base + page * PAGE))[i * 100] != shadow[page][i];
	}
	return wrong;
}

/* Calls move_pages(); absent pages and pages shared with a worker need not move. */
static long try_move(pid_t pid, uint64_t address, uint64_t pages, int node)
{
	void *page[256];
	int to[256], status[256];

	for (uint64_t i = 0; i < pages; i++) {
		page[i] = (void *)(address + i * PAGE);
		to[i] = node;
	}
	return syscall(SYS_move_pages, pid, pages, page, to, status, 2);
}

void check_stress(void)
{
	struct target target = target_start();
	uint64_t address = target_call(&target, map_pages, PAGES + SCRATCH, 0);
	struct sampler sampler = sampler_open(target.pid, 1 << 16);
	uint64_t logged = 0, out_of_range = 0, twice = 0;
	static uint32_t last[PAGES + SCRATCH];
	uint64_t wrong;

	sampler_add(&sampler, address, PAGES + SCRATCH);
	sampler_arm(&sampler, address, PAGES + SCRATCH);
	target_call(&target, start_threads, address, 0);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint64_t pages = 1 + mix(round, 1) % 256;
		uint64_t part = address + mix(round, 2) % (PAGES - pages) * PAGE;
		struct sentinel_access *records;
		size_t count;

		if (round % 2) {
			sampler_disarm(&sampler, part, pages);
			try_move(target.pid, part, pages, round / 2 % 2);
			sampler_arm(&sampler, part, pages);
		} else if (round % 16 == 0) {
			/* a move of armed pages: kernels newer than 6.1 move and unarm them */
			try_move(target.pid, part, pages, round / 16 % 2);
		}
		CHECK(!epoch_call(sampler.fd, round % 3 ? 0 : SENTINEL_EPOCH_RESIDENCY, NULL), "EPOCH");
		count = sampler_drain(&sampler, &records);
		for (size_t i = 0; i < count; i++) {
			uint64_t page = records[i].page - address / PAGE;

			if (records[i].flags & SENTINEL_ACCESS_RESIDENCY)
				continue;
			logged++;
			out_of_range += page >= PAGES + SCRATCH;
			if (page >= PAGES + SCRATCH)
				continue;
			twice += last[page] == records[i].epoch;
			last[page] = records[i].epoch;
		}
		free(records);
		usleep(3000);
	}
	wrong = target_call(&target, stop_threads, 0, 0);
	printf("stress: %d rounds, %lu records, %llu lost; %lu wrong words, %lu out of range, %lu twice\n",
	       ROUNDS, logged, sampler_stats(&sampler).lost, wrong, out_of_range, twice);
	CHECK(!wrong && !out_of_range && !twice, "see above");
	CHECK(logged > PAGES, "%lu records", logged);
	sampler_close(&sampler);
	target_stop(&target);
}
