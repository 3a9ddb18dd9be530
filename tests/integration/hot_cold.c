/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process with a hot set and a cold set: hot_cold TOTAL_MIB HOT_MIB
 *
 * It maps TOTAL_MIB of private anonymous memory and fills it with a pattern. Then it writes to one
 * word of each page of the hot set, again and again. The hot set begins at the start of the memory.
 * Commands on standard input, one a line; each is answered by a line:
 *
 *   hot MIB    move the hot set: it begins at this offset from now on
 *   sum        a checksum of the memory without the words that the hot set's loop changes
 *   lock MIB   mlock the first MIB
 *   unlock     undo all mlock
 *   pin MIB    mlock every second page from this offset, so that each page is a mapping of its own
 *   share MIB  map and fill shared memory
 *   split MIB  make every second page from this offset read-only, so that each page is a mapping
 *              of its own
 *   huge       map and fill a huge page of 2 MiB (hugetlb)
 *   fork       fork a child that waits for the end of its parent
 *   clone      start a child in this address space, as vfork() does; it waits for the end of its
 *              parent
 *   exec       execute this program again, with the same arguments
 *
 * The first line of output has the address of the memory. The process exits at the end of its
 * input.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { PAGE_WORDS = 4096 / 8 };
#define MIB_WORDS ((1 << 20) / 8UL)

static uint64_t *memory;
static size_t total, hot, hot_start; /* in words */

static void fill(uint64_t *at, size_t words)
{
	uint64_t state = 88172645463325252UL;

	for (size_t i = 0; i < words; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		at[i] = state;
	}
}

static uint64_t checksum(void)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < total; i++)
		if (i % PAGE_WORDS)
			sum = sum * 31 + memory[i];
	return sum;
}

static void require(int failed, const char *what)
{
	if (failed) {
		perror(what);
		exit(1);
	}
}

static void *map(size_t words, int kind)
{
	void *found = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);

	require(found == MAP_FAILED, "mmap");
	return found;
}

static int wait_for_parent(void *unused)
{
	(void)unused;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (pause())
		;
	return 0;
}

static int command(char **argv)
{
	static uint64_t stack[4096] __attribute__((aligned(16)));
	char line[64];
	size_t mib = 0;

	/* Read single bytes, so that no buffer hides input from poll(). */
	for (size_t i = 0;; i++) {
		if (i + 1 == sizeof(line) || read(0, line + i, 1) != 1)
			return 0;
		if (line[i] == '\n') {
			line[i] = 0;
			break;
		}
	}
	if (sscanf(line, "hot %zu", &mib) == 1) {
		hot_start = mib * MIB_WORDS;
	} else if (!strcmp(line, "sum")) {
		printf("%016lx\n", checksum());
		return 1;
	} else if (sscanf(line, "lock %zu", &mib) == 1) {
		require(mlock(memory, mib << 20), "mlock");
	} else if (!strcmp(line, "unlock")) {
		require(munlockall(), "munlockall");
	} else if (sscanf(line, "pin %zu", &mib) == 1) {
		for (size_t i = mib * MIB_WORDS; i < total; i += 2 * PAGE_WORDS)
			require(mlock(memory + i, PAGE_WORDS * 8), "mlock");
	} else if (sscanf(line, "share %zu", &mib) == 1) {
		fill(map(mib * MIB_WORDS, MAP_SHARED), mib * MIB_WORDS);
	} else if (sscanf(line, "split %zu", &mib) == 1) {
		for (size_t i = mib * MIB_WORDS; i < total; i += 2 * PAGE_WORDS)
			require(mprotect(memory + i, PAGE_WORDS * 8, PROT_READ), "mprotect");
	} else if (!strcmp(line, "huge")) {
		fill(map(2 * MIB_WORDS, MAP_PRIVATE | MAP_HUGETLB), 2 * MIB_WORDS);
	} else if (!strcmp(line, "fork")) {
		if (!fork())
			wait_for_parent(NULL);
	} else if (!strcmp(line, "clone")) {
		int flags = CLONE_VM | SIGCHLD;

		require(clone(wait_for_parent, stack + 4096, flags, NULL) < 0, "clone");
	} else if (!strcmp(line, "exec")) {
		execv("/proc/self/exe", argv);
		perror("execv");
		exit(1);
	}
	printf("done\n");
	return 1;
}

int main(int argc, char **argv)
{
	struct pollfd input = {.fd = 0, .events = POLLIN};

	if (argc != 3)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	total = strtoul(argv[1], NULL, 10) * MIB_WORDS;
	hot = strtoul(argv[2], NULL, 10) * MIB_WORDS;
	memory = map(total, MAP_PRIVATE);
	fill(memory, total);
	printf("%p\n", (void *)memory);
	do {
		for (size_t i = hot_start; i < hot_start + hot && i < total; i += PAGE_WORDS)
			memory[i]++;
	} while (poll(&input, 1, 5) == 0 || command(argv));
	return 0;
}
