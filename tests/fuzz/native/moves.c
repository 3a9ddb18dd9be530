// SPDX-License-Identifier: Apache-2.0
/*
 * Fuzzes the data that the pager reads from the daemon: the queues of the daemon's
 * moves and the other words of the residency segment (memory that the process shares
 * with the daemon). The input is a sequence of actions of the training (births, drops,
 * accesses, forks, budgets) and of the daemon (queued moves, other words). No page may
 * lose its content. Within one input, the pager may take at most OVERRUNS_MAX frames
 * beyond its budget.
 *
 * The pager, its threads, the kernel's userfaultfd and the file are real, so runs
 * are not repeatable in every detail. The pager never stops, so all inputs share
 * one pager. Not covered: I/O errors, a file that grows, and the moves in a layout.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paged_memory.h"
#include "paging.h"

#define PAGE_BYTES 4096u
#define ARENA_PAGES 256u
#define HEAP_PAGES 512u
#define FILE_PAGES 4096u
#define BUDGET_MIN 48u
#define ACTIONS_MAX 200u
#define FORKS_MAX 1u /* per input */
/* limit on the frames that the pager takes beyond its budget during one input; the pager needs
   such frames while the kernel briefly pins pages, because pinned pages cannot be evicted */
#define OVERRUNS_MAX 16u
#define ROUND 16u /* largest number of ranges that one action queues */

#define require(truth) ((truth) ? (void)0 : abort())

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t *at, *end;
static struct heap heap;
static struct arena arena;
static struct layout layout;
static struct sentinel_layout header;
static struct emulation *emulation;
static int wake;
static int pipe_fds[2];
/* marks[space][page] is the content of a page, or 0 if the page is absent; space 0 is the arena,
   space 1 the heap */
static uint64_t marks[2][HEAP_PAGES];
static uint64_t next_mark;
static unsigned forks;
static uint64_t overruns; /* frames taken beyond the budget in all earlier inputs */

static uint8_t take8(void)
{
	return at < end ? *at++ : 0;
}

static uint64_t take64(void)
{
	uint64_t value = 0;

	for (unsigned shift = 0; shift < 64; shift += 8)
		value |= (uint64_t)take8() << shift;
	return value;
}

/* The memory of the training. */

static uint64_t pages_of(unsigned space)
{
	return space ? HEAP_PAGES : ARENA_PAGES;
}

static uint64_t *page_at(unsigned space, uint64_t page)
{
	return (void *)((space ? heap.base : arena.base) + page * PAGE_BYTES);
}

static void mark(unsigned space, uint64_t page)
{
	uint64_t *words = page_at(space, page);

	marks[space][page] = words[0] = words[PAGE_BYTES / sizeof(*words) - 1] = ++next_mark;
}

static void check(unsigned space, uint64_t page)
{
	const uint64_t *words = page_at(space, page);

	if (!marks[space][page])
		return;
	require(words[0] == marks[space][page]);
	require(words[PAGE_BYTES / sizeof(*words) - 1] == marks[space][page]);
}

static void check_all(void)
{
	for (unsigned space = 0; space < 2; space++)
		for (uint64_t page = 0; page < pages_of(space); page++)
			check(space, page);
}

static void each_page(void (*act)(unsigned space, uint64_t page))
{
	unsigned space = take8() % 2;
	uint64_t first = (uint64_t)take8() * pages_of(space) / 256, last = first + 1 + take8();

	for (uint64_t page = first; page < last && page < pages_of(space); page++)
		act(space, page);
}

static void give_birth(unsigned space, uint64_t page)
{
	if (marks[space][page])
		return;
	require(paging_born(page_at(space, page), PAGE_BYTES));
	mark(space, page);
}

static void change(unsigned space, uint64_t page)
{
	if (marks[space][page])
		mark(space, page);
}

static void drop(unsigned space, uint64_t page)
{
	marks[space][page] = 0;
	memory_drop(page_at(space, page), PAGE_BYTES);
}

static void read_by_kernel(unsigned space, uint64_t page)
{
	uint64_t copy[PAGE_BYTES / sizeof(uint64_t)];

	if (!marks[space][page] || page % 8)
		return;
	require(write(pipe_fds[1], page_at(space, page), sizeof(copy)) == (ssize_t)sizeof(copy));
	require(read(pipe_fds[0], copy, sizeof(copy)) == (ssize_t)sizeof(copy));
	require(copy[0] == marks[space][page]);
}

static void fork_child(void)
{
	int status = 0;
	pid_t pid;

	if (forks++ >= FORKS_MAX)
		return;
	paging_before_fork();
	pid = fork();
	if (!pid) {
		paging_after_fork_in_child();
		check_all();
		_exit(0);
	}
	paging_after_fork_in_parent();
	/* libFuzzer's timer interrupts the call, because its handler is set without SA_RESTART. */
	require(pid > 0 && TEMP_FAILURE_RETRY(waitpid(pid, &status, 0)) == pid && !status);
}

/* The daemon's actions. */

static uint64_t take_value(uint64_t near)
{
	uint8_t kind = take8();
	int8_t off = (int8_t)take8();

	switch (kind % 4) {
	case 0:
		return near + (uint64_t)off;
	case 1:
		return (uint64_t)off;
	case 2:
		return 1ull << (off & 63);
	default:
		return take64();
	}
}

static void queue_moves(void)
{
	struct sentinel_paging *words = emulation_paging(emulation);
	uint8_t what = take8();
	struct sentinel_page_queue *queue = what & 1 ? &words->evict : &words->fetch;
	uint64_t head = queue->head, count = 1 + (what >> 1) % ROUND;

	for (uint64_t i = 0; i < count; i++) {
		struct sentinel_page_range *range = &queue->ranges[(head + i) % SENTINEL_QUEUE_RANGES];
		uint8_t kind = take8();

		range->space = kind % 2;
		range->page = (uint64_t)take8() * pages_of(kind % 2) / 256;
		range->pages = 1 + take8();
		if (kind >= 192) {
			range->space = take8();
			range->page = take_value(HEAP_PAGES);
			range->pages = (uint32_t)take_value(HEAP_PAGES);
		}
	}
	__atomic_store_n(&queue->head, head + count, __ATOMIC_RELEASE);
}

/* Writes any word of the segment, even one that only the shim may write. */
static void write_word(void)
{
	char *words = (char *)emulation->segment;
	uint64_t value, offset = take64();
	uint8_t what = take8();

	if (what % 4 == 0)
		offset %= sizeof(struct sentinel_residency) / sizeof(value);
	else if (what % 4 == 1)
		offset = (emulation->segment->paging_offset + offset % 256) / sizeof(value);
	else
		offset %= emulation->bytes / sizeof(value);
	if ((offset + 1) * sizeof(value) > emulation->bytes)
		return;
	memcpy(&value, words + offset * sizeof(value), sizeof(value));
	value = take_value(value);
	memcpy(words + offset * sizeof(value), &value, sizeof(value));
}

static void act(void)
{
	uint64_t fast, slow;

	switch (take8() % 12) {
	case 0:
	case 1:
		each_page(give_birth);
		break;
	case 2:
		each_page(drop);
		break;
	case 3:
		each_page(check);
		break;
	case 4:
		each_page(change);
		break;
	case 5:
		each_page(read_by_kernel);
		break;
	case 6:
		paging_set_budget(BUDGET_MIN + 3u * take8());
		break;
	case 7:
		paging_publish();
		emulation_resident(emulation, HEAP_PAGES, &fast, &slow);
		require((fast + slow) / PAGE_BYTES <= ARENA_PAGES + HEAP_PAGES);
		break;
	case 8:
		write_word();
		require(eventfd_write(wake, 1) == 0);
		break;
	case 9:
		fork_child();
		break;
	default:
		queue_moves();
		require(eventfd_write(wake, 1) == 0);
	}
}

/* Makes a new residency segment, as the shim does for each layout. */
static void new_segment(void)
{
	struct emulation *before = emulation;

	require(!emulation_new(&emulation, &layout, &heap, true, NULL, 0));
	paging_use(emulation, &arena);
	if (before)
		emulation_delete(before);
}

static void start(void)
{
	struct paging_settings settings = {
		.bytes = (uint64_t)FILE_PAGES * PAGE_BYTES,
		.bytes_max = (uint64_t)FILE_PAGES * PAGE_BYTES,
		.budget_pages = BUDGET_MIN,
	};
	const char *problem;

	header = (struct sentinel_layout){.arena_bytes = ARENA_PAGES * PAGE_BYTES, .boundary_count = 1};
	layout.header = &header;
	arena = (struct arena){.layout = layout, .bytes = ARENA_PAGES * PAGE_BYTES, .page_shift = 12};
	arena.base = mmap(NULL, arena.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	require(arena.base != MAP_FAILED);
	require(!heap_init(&heap, HEAP_PAGES * PAGE_BYTES, HEAP_PAGES * PAGE_BYTES));
	wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	settings.wake = dup(wake);
	settings.file = open(".", O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
	require(settings.file >= 0 && !ftruncate(settings.file, (off_t)settings.bytes));
	require(wake >= 0 && !pipe(pipe_fds));
	problem = paging_start(&heap, &settings);
	if (!problem)
		problem = paging_add(&arena);
	if (problem) {
		fprintf(stderr, "%s\n", problem);
		exit(1);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!arena.base)
		start();
	at = data;
	end = data + size;
	forks = 0;
	new_segment();
	paging_set_budget(BUDGET_MIN);
	for (unsigned actions = 0; at < end && actions < ACTIONS_MAX; actions++)
		act();
	check_all();
	/* Check the counters in a new segment: the input may have overwritten those in the old segment. */
	new_segment();
	require(!emulation_paging(emulation)->write_error);
	require(emulation_paging(emulation)->overruns - overruns <= OVERRUNS_MAX);
	overruns = emulation_paging(emulation)->overruns;
	for (unsigned space = 0; space < 2; space++)
		for (uint64_t page = 0; page < pages_of(space); page++)
			if (marks[space][page])
				drop(space, page);
	return 0;
}
