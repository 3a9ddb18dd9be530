// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "paging.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "paged_memory.h"
#include "pager/threads.h"
#include "paging_file.h"

#define REQUESTS 8u /* maximum number of reads and writes in flight; more would not make a disk faster */
#define FILE_BYTES_MAX (1ull << 44) /* file pages are numbered with 32 bits */

/* The shim's lock is taken before paging.lock, and paging.lock before the file's lock. */
static struct {
	/* guards the fields below, except atomic ones and those that are constant while the pager
	   runs */
	pthread_mutex_t lock;
	struct paging_file file;
	uint64_t budget_pages;
	unsigned page_shift;
	int wake; /* eventfd that the daemon signals when it has queued moves */
	/* eventfd that wakes serve_moves() if it has work, if the file is nearly full, or if `wake`
	   has changed */
	int notify;
	struct sentinel_paging *words; /* NULL: no residency segment */
	char *base[2]; /* the arena's base, the heap's base */
	uint64_t pages[2];
	/* progress in the first range of each queue (0: evict, 1: fetch): number of the range's
	   first pages that have begun to move or need no move */
	uint64_t done[2];
	struct schedule schedule; /* the layout's moves */
	_Atomic uint64_t position; /* see paging_pass() */
	/* numbers of pages that the layout's moves have begun to evict and to fetch */
	uint64_t evicted_pages, fetched_pages;
} paging = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.position = SCHEDULE_NOWHERE,
	.file = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1},
	.wake = -1,
	.notify = -1,
};

/* Copy the queue's first range to *range. Returns false if the queue is empty, or if its head is
   invalid: the daemon, which writes the head, is untrusted. */
static bool first_range(const struct sentinel_page_queue *queue, struct sentinel_page_range *range)
{
	uint64_t head = __atomic_load_n(&queue->head, __ATOMIC_ACQUIRE), tail = queue->tail;

	if (head == tail || head - tail > SENTINEL_QUEUE_RANGES)
		return false;
	*range = *(const volatile struct sentinel_page_range *)&queue->ranges[tail % SENTINEL_QUEUE_RANGES];
	return true;
}

/* Begin to evict or to fetch pages. Returns the number of pages whose move has begun. *done: number
   of pages, counted from the first one, that need no further call. Needs paging.lock. */
static uint64_t begin(unsigned space, uint64_t page, uint64_t pages, bool evict, uint64_t *done)
{
	char *address;

	*done = pages;
	if (space > 1 || page > paging.pages[space] || pages > paging.pages[space] - page)
		return 0;
	address = paging.base[space] + (page << paging.page_shift);
	return evict ? pager_evict(paging_pager(), address, pages, done)
		     : pager_fetch(paging_pager(), address, pages, done);
}

/* Begin the moves of a queue, in order. Stops at the first move that cannot begin for all of its
   pages now. Needs paging.lock. */
static void begin_queued(struct sentinel_page_queue *queue, uint64_t *done, bool evict)
{
	struct sentinel_page_range range;

	while (first_range(queue, &range)) {
		if (*done < range.pages) {
			uint64_t left = range.pages - *done, some;

			begin(range.space, range.page + *done, left, evict, &some);
			*done += some;
			if (some < left)
				return;
		}
		*done = 0;
		__atomic_store_n(&queue->tail, queue->tail + 1, __ATOMIC_RELEASE);
	}
}

/* Begin the layout's moves that are due, in order. Stops at the first move that cannot begin for all
   of its pages now. Needs paging.lock. */
static void begin_due(struct due_moves *moves, bool evict, uint64_t *began_pages)
{
	while (moves->count) {
		struct due_move *due = moves->first;
		const struct sentinel_move *move = due->move;
		uint64_t some, began;

		began = begin(move->flags & SENTINEL_MOVE_HEAP ? 1 : 0, move->page + due->done,
			      move->pages - due->done, evict, &some);
		*began_pages += began;
		if (!schedule_done(&paging.schedule, moves, due, some, began))
			return;
	}
}

/* Begin the moves that are due or queued, evictions before fetches. Needs paging.lock. */
static void begin_moves(void)
{
	struct schedule *schedule = &paging.schedule;

	schedule_pass(schedule, atomic_load(&paging.position));
	begin_due(&schedule->evict, true, &paging.evicted_pages);
	if (paging.words)
		begin_queued(&paging.words->evict, &paging.done[0], true);
	begin_due(&schedule->fetch, false, &paging.fetched_pages);
	if (paging.words)
		begin_queued(&paging.words->fetch, &paging.done[1], false);
}

void paging_pass(uint64_t position, bool has_moves)
{
	if (!paging_runs())
		return;
	atomic_store(&paging.position, position);
	pager_pass(paging_pager());
	if (has_moves)
		event_signal(paging.notify);
}

/* Do the work of paging_publish(). Needs paging.lock. */
static void publish_counts(void)
{
	struct sentinel_paging *words = paging.words;
	struct pager_counts counts;

	if (!words)
		return;
	pager_read_counts(paging_pager(), &counts);
#define PUBLISH(word) __atomic_store_n(&words->word, counts.word, __ATOMIC_RELAXED)
	PUBLISH(bytes_read);
	PUBLISH(bytes_written);
	PUBLISH(faults);
	PUBLISH(births_by_fault);
	PUBLISH(clean_pages);
	PUBLISH(waits);
	PUBLISH(fault_reads);
	PUBLISH(fault_read_ns);
	PUBLISH(overruns);
	PUBLISH(frames);
	PUBLISH(write_error);
#undef PUBLISH
	__atomic_store_n(&words->budget_pages, paging.budget_pages, __ATOMIC_RELAXED);
	__atomic_store_n(&words->file_bytes, paging.file.bytes, __ATOMIC_RELAXED);
	__atomic_store_n(&words->evicted_pages, paging.evicted_pages, __ATOMIC_RELAXED);
	__atomic_store_n(&words->fetched_pages, paging.fetched_pages, __ATOMIC_RELAXED);
	__atomic_store_n(&words->late_moves, paging.schedule.late, __ATOMIC_RELAXED);
}

/* Set the pager's budget and publish it. Needs paging.lock. */
static void set_budget(uint64_t pages)
{
	paging.budget_pages = pages;
	pager_set_budget(paging_pager(), pages);
	publish_counts();
}

void paging_publish(void)
{
	if (!paging_runs())
		return;
	pthread_mutex_lock(&paging.lock);
	publish_counts();
	pthread_mutex_unlock(&paging.lock);
}

static void drain(int event)
{
	uint64_t count;
	ssize_t got = event < 0 ? 0 : read(event, &count, sizeof(count));

	(void)got;
}

static void *serve_moves(void *unused)
{
	int wait_ms = -1;

	(void)unused;
	pthread_setname_np(pthread_self(), "sentineld-moves");
	thread_give_way();
	for (;;) {
		struct pollfd polled[2] = {{.events = POLLIN}, {.events = POLLIN}};

		pthread_mutex_lock(&paging.lock);
		polled[0].fd = paging.notify;
		polled[1].fd = paging.wake;
		pthread_mutex_unlock(&paging.lock);
		poll(polled, 2, wait_ms);
		pthread_mutex_lock(&paging.lock);
		drain(paging.notify);
		drain(paging.wake);
		/* Do not hold paging.lock while the file grows: step_begin() takes this lock, and the
		   training must not wait for the disk. */
		pthread_mutex_unlock(&paging.lock);
		wait_ms = paging_file_grow(&paging.file, paging_pager());
		pthread_mutex_lock(&paging.lock);
		begin_moves();
		publish_counts();
		pthread_mutex_unlock(&paging.lock);
	}
	return NULL;
}

/* Start the pager, which manages the heap. Returns NULL, or a description of the problem. Needs
   paging.lock. */
static const char *start(const struct heap *heap)
{
	struct pager_settings settings = {
		.device = -1,
		.file = paging.file.fd,
		.file_pages = paging.file.bytes >> heap->page_shift,
		.budget_pages = UINT64_MAX >> 1,
		.requests = REQUESTS,
	};
	struct pager *pager;
	const char *problem;
	pthread_t thread;

	paging.notify = settings.notify = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (paging.notify < 0)
		return "no file descriptor is available";
	problem = pager_start(&pager, &settings);
	if (problem)
		return problem;
	problem = pager_add(pager, heap->base, heap->bytes, (uint64_t)heap->top_page << heap->page_shift);
	if (problem) {
		pager_stop(pager);
		return problem;
	}
	if (thread_start(&thread, serve_moves, NULL)) {
		pager_stop(pager);
		return "the pager's threads cannot be started";
	}
	pthread_detach(thread); /* the thread never ends */
	paging.page_shift = heap->page_shift;
	paging.base[1] = heap->base;
	paging.pages[1] = heap->pages;
	paging_set_pager(pager, heap->page_shift);
	return NULL;
}

/* Start the pager or, if it runs, enlarge its file. Returns NULL, or a description of the problem.
   Needs paging.lock. */
static const char *start_or_enlarge(const struct heap *heap, const struct paging_settings *settings)
{
	const char *problem;

	if (settings->bytes > FILE_BYTES_MAX || settings->bytes_max > FILE_BYTES_MAX)
		return "the paging file's size is out of range";
	paging.file.bytes_max = settings->bytes_max;
	if (paging_runs()) {
		event_signal(paging.notify); /* makes serve_moves() poll the new paging.wake */
		return paging_file_enlarge(&paging.file, paging_pager(), settings->bytes);
	}
	if (settings->file < 0)
		return "the paging file is missing";
	paging.file.fd = settings->file;
	paging.file.bytes = settings->bytes;
	paging.file.page_shift = heap->page_shift;
	problem = start(heap);
	if (problem) {
		if (paging.notify >= 0)
			close(paging.notify);
		paging.file.fd = paging.notify = -1; /* paging_start() then closes the file */
	}
	return problem;
}

const char *paging_start(const struct heap *heap, const struct paging_settings *settings)
{
	const char *problem;

	pthread_mutex_lock(&paging.lock);
	if (paging.wake >= 0)
		close(paging.wake);
	paging.wake = settings->wake;
	problem = start_or_enlarge(heap, settings);
	if (settings->file >= 0 && settings->file != paging.file.fd)
		close(settings->file);
	if (!problem && settings->budget_pages)
		set_budget(settings->budget_pages);
	pthread_mutex_unlock(&paging.lock);
	return problem;
}

const char *paging_add(const struct arena *arena)
{
	const struct layout *layout = &arena->layout;
	const char *problem;

	if (!paging_runs() || !arena->bytes)
		return NULL;
	problem = pager_add(paging_pager(), arena->base, arena->bytes, 0);
	for (uint32_t i = 0; !problem && i < layout->header->region_count; i++) {
		const struct sentinel_region *region = &layout->regions[i];

		if (region->node > 0)
			pager_born_out(paging_pager(), arena->base + region->offset,
				       region->bytes >> arena->page_shift);
	}
	return problem;
}

void paging_use(struct emulation *emulation, const struct arena *arena)
{
	bool mapped = emulation && emulation->paged;

	if (!paging_runs())
		return;
	pthread_mutex_lock(&paging.lock);
	if (paging.pages[0])
		pager_publish(paging_pager(), paging.base[0], NULL);
	paging.base[0] = arena && mapped ? arena->base : NULL;
	paging.pages[0] = arena && mapped ? arena->bytes >> paging.page_shift : 0;
	if (paging.pages[0])
		pager_publish(paging_pager(), paging.base[0], emulation->arena);
	pager_publish(paging_pager(), paging.base[1], mapped ? emulation->heap : NULL);
	paging.words = mapped ? emulation_paging(emulation) : NULL;
	paging.done[0] = paging.done[1] = 0;
	atomic_store(&paging.position, SCHEDULE_NOWHERE);
	schedule_destroy(&paging.schedule);
	/* If memory for the moves cannot be allocated, pages are evicted and fetched on demand. */
	if (arena && mapped)
		schedule_init(&paging.schedule, &arena->layout);
	paging.evicted_pages = paging.fetched_pages = 0;
	publish_counts();
	pthread_mutex_unlock(&paging.lock);
}

void paging_set_budget(uint64_t pages)
{
	pthread_mutex_lock(&paging.lock);
	if (paging_runs())
		set_budget(pages);
	pthread_mutex_unlock(&paging.lock);
}

void paging_before_fork(void)
{
	pthread_mutex_lock(&paging.lock);
	if (paging_runs())
		pager_before_fork(paging_pager());
}

void paging_after_fork_in_parent(void)
{
	if (paging_runs())
		pager_after_fork_in_parent(paging_pager());
	pthread_mutex_unlock(&paging.lock);
}

void paging_after_fork_in_child(void)
{
	if (paging_runs()) {
		pager_after_fork_in_child(paging_pager());
		close(paging.file.fd);
		close(paging.notify);
		if (paging.wake >= 0)
			close(paging.wake);
		/* If a thread of the parent held the file's lock at the fork, nothing would ever
		   release the child's copy of the lock, so initialize it. */
		pthread_mutex_init(&paging.file.lock, NULL);
		paging.file.fd = paging.notify = paging.wake = -1;
		paging.words = NULL;
		paging_set_pager(NULL, paging.page_shift);
	}
	pthread_mutex_unlock(&paging.lock);
}
