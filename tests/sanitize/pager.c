// SPDX-License-Identifier: Apache-2.0
/*
 * Several threads use the pager at the same time. Usage: pager SEED OPERATIONS FOLDER
 *
 * Each thread owns a part of the memory. It creates, fills, checks, evicts, fetches
 * and drops random ranges of pages in this part. It also passes pages to write(), so that
 * the kernel accesses evicted pages.
 * While the threads run, the main thread forks; the children check that no filled page is zero.
 * The threads together have several times as many pages as the budget allows.
 */
#define _GNU_SOURCE
#include "pager.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 3
#define PAGES 2048u /* of each thread */
#define BUDGET 1024u
#define WORDS 512u
#define RANGE_MAX 400u
#define FORKS 6
#define FORK_EVERY_US 30000

struct worker {
	pthread_t thread;
	uint64_t (*memory)[WORDS];
	_Atomic uint64_t seed[PAGES]; /* `seed` of the last fill(); 0: never filled, or dropped */
	unsigned random;
	int operations;
};

static struct pager *pager;
static struct worker workers[THREADS];
static _Atomic uint64_t last_seed;
static _Atomic int running = THREADS;

static void require(int holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "%s\n", what);
	_exit(1);
}

static void fill(struct worker *worker, unsigned page)
{
	uint64_t seed = ++last_seed;

	for (unsigned i = 0; i < WORDS; i++)
		worker->memory[page][i] = seed << 16 | (i + 1);
	worker->seed[page] = seed;
}

static void check(const uint64_t *words, uint64_t seed)
{
	for (unsigned i = 0; i < WORDS; i++)
		require(words[i] == (seed << 16 | (i + 1)), "a page has wrong numbers");
}

static void read_by_kernel(const struct worker *worker, unsigned page, const int *pipe_fds)
{
	uint64_t words[WORDS];

	require(write(pipe_fds[1], worker->memory[page], sizeof(words)) == (ssize_t)sizeof(words), "write");
	require(read(pipe_fds[0], words, sizeof(words)) == (ssize_t)sizeof(words), "read");
	check(words, worker->seed[page]);
}

static void operate(struct worker *worker, unsigned kind, unsigned first, unsigned count, const int *pipe_fds)
{
	uint64_t done;

	switch (kind) {
	case 0:
	case 1:
		pager_born(pager, worker->memory[first], count);
		for (unsigned page = first; page < first + count; page++)
			fill(worker, page);
		return;
	case 2:
		for (unsigned page = first; page < first + count; page++)
			worker->seed[page] = 0;
		pager_dropped(pager, worker->memory[first], count);
		return;
	case 3:
		pager_evict(pager, worker->memory[first], count, &done);
		return;
	case 4:
		pager_fetch(pager, worker->memory[first], count, &done);
		return;
	default:
		for (unsigned page = first; page < first + count; page++)
			if (worker->seed[page] && kind == 5)
				check(worker->memory[page], worker->seed[page]);
			else if (worker->seed[page] && kind == 6 && page % 8 == 0)
				read_by_kernel(worker, page, pipe_fds);
			else if (worker->seed[page] && kind == 7 && page % 3 == 0)
				fill(worker, page);
	}
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	int pipe_fds[2];

	require(!pipe(pipe_fds), "pipe");
	for (int i = 0; i < worker->operations; i++) {
		unsigned first = (unsigned)rand_r(&worker->random) % PAGES;
		unsigned count = 1 + (unsigned)rand_r(&worker->random) % RANGE_MAX;

		if (count > PAGES - first)
			count = PAGES - first;
		operate(worker, (unsigned)rand_r(&worker->random) % 8, first, count, pipe_fds);
	}
	running--;
	return NULL;
}

/*
 * A thread of the parent may have been writing to a page at the fork. Therefore the check
 * accepts any content except zeros.
 */
static void check_child(void)
{
	for (int i = 0; i < THREADS; i++)
		for (unsigned page = 0; page < PAGES; page++)
			require(!workers[i].seed[page] || workers[i].memory[page][WORDS - 1],
				"a page reads as zeros in a child");
}

static void fork_child(void)
{
	pid_t pid;

	pager_before_fork(pager);
	pid = fork();
	if (!pid) {
		pager_after_fork_in_child(pager);
		check_child();
		usleep(FORK_EVERY_US);
		check_child();
		_exit(0);
	}
	pager_after_fork_in_parent(pager);
	require(pid > 0, "fork");
}

static void reap(void)
{
	int status;

	while (waitpid(-1, &status, 0) > 0)
		require(!status, "a child failed");
}

int main(int argc, char **argv)
{
	struct pager_settings settings = {.device = -1, .budget_pages = BUDGET, .requests = 4, .notify = -1};
	uint64_t bytes = (uint64_t)THREADS * PAGES * WORDS * sizeof(uint64_t);
	struct pager_counts counts;
	const char *problem;
	char *memory;

	require(argc == 4, "usage: pager SEED OPERATIONS FOLDER");
	settings.file = open(argv[3], O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
	settings.file_pages = 8ull * THREADS * PAGES;
	require(settings.file >= 0 && !ftruncate(settings.file, (off_t)(8 * bytes)), "no backing file");
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	require(memory != MAP_FAILED, "mmap");
	problem = pager_start(&pager, &settings);
	require(!problem, problem);
	for (int i = 0; i < THREADS; i++) {
		workers[i].memory = (void *)(memory + i * bytes / THREADS);
		workers[i].random = (unsigned)atoi(argv[1]) * THREADS + (unsigned)i;
		workers[i].operations = atoi(argv[2]);
		/* These pages exist before the pager manages the memory. */
		for (unsigned page = 0; page < PAGES / 4; page++)
			fill(&workers[i], page);
	}
	problem = pager_add(pager, memory, bytes, bytes);
	require(!problem, problem);
	for (int i = 0; i < THREADS; i++)
		require(!pthread_create(&workers[i].thread, NULL, work, &workers[i]), "pthread_create");
	for (int i = 0; i < FORKS && running; i++) {
		usleep(FORK_EVERY_US);
		fork_child();
		if (i % 3 == 2)
			reap();
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(workers[i].thread, NULL);
	reap();
	pager_settle(pager);
	pager_read_counts(pager, &counts);
	pager_stop(pager);
	for (int i = 0; i < THREADS; i++)
		for (unsigned page = 0; page < PAGES; page++)
			if (workers[i].seed[page])
				check(workers[i].memory[page], workers[i].seed[page]);
	printf("frames %llu, budget %u, faults %llu, overruns %llu, error %d\n",
	       (unsigned long long)counts.frames, BUDGET, (unsigned long long)counts.faults,
	       (unsigned long long)counts.overruns, -counts.write_error);
	return 0;
}
