// SPDX-License-Identifier: Apache-2.0
/* The fork handlers, and the functions that Python calls through ctypes, for example to start the
   shim or to use a layout. place.c contains more such functions, which place tensors. */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "paged_memory.h"
#include "paging.h"

struct shim shim = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.control_fd = -1,
	.event_fd = -1,
	.epoch_fd = -1,
};

API uint32_t sentinel_version(void);
API int sentinel_start(uint64_t heap_bytes, uint64_t request_bytes_max, uint64_t ring_records);
API void sentinel_enable(int on);
API int sentinel_control_fd(void);
API int sentinel_event_fd(void);
API int sentinel_residency_fd(void);
API void *sentinel_control_words(void);
API void sentinel_connected(int connected);
API void sentinel_epoch_fd(int fd);
API const char *sentinel_paging(int file, uint64_t bytes, uint64_t bytes_max, int wake,
				uint64_t budget_pages);
API const char *sentinel_layout(int fd);
API void sentinel_detach(void);

API uint32_t sentinel_version(void)
{
	return SENTINEL_SHIM_VERSION;
}

static void before_fork(void)
{
	pthread_mutex_lock(&shim.lock);
	paging_before_fork();
}

static void after_fork_parent(void)
{
	paging_after_fork_in_parent();
	pthread_mutex_unlock(&shim.lock);
}

/*
 * A forked child has copies of all tensors, but shares the control segment with
 * the parent. So the shim in the child passes all allocations through to libc10,
 * records nothing, waits for nothing and closes its descriptors.
 */
static void after_fork_child(void)
{
	paging_after_fork_in_child();
	shim.child = true;
	shim.on = false;
	shim.connected = false;
	shim.recording = false;
	shim.epochs = false;
	shim.owner = 0;
	shim.mode = SENTINEL_MODE_DORMANT;
	if (shim.epoch_fd >= 0)
		close(shim.epoch_fd);
	close(shim.control_fd);
	close(shim.event_fd);
	shim.epoch_fd = shim.control_fd = shim.event_fd = -1;
	if (shim.emulation)
		close(shim.emulation->fd);
	shim.emulation = NULL;
	pthread_mutex_unlock(&shim.lock);
}

/* Reserve the heap and create the control segment. The shim serves no tensors before
   sentinel_enable(). Returns 0 or -errno. */
API int sentinel_start(uint64_t heap_bytes, uint64_t request_bytes_max, uint64_t ring_records)
{
	int error;

	if (shim.control)
		return -EALREADY;
	if (!ring_records || ring_records & (ring_records - 1))
		return -EINVAL;
	error = heap_init(&shim.heap, heap_bytes, request_bytes_max);
	if (error)
		return error;
	error = control_new(ring_records);
	if (error)
		return error;
	shim.control->heap_base = (uintptr_t)shim.heap.base;
	shim.control->heap_bytes = shim.heap.bytes;
	return -pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

API void sentinel_enable(int on)
{
	shim.on = on && !shim.child;
}

API int sentinel_control_fd(void)
{
	return shim.control_fd;
}

API int sentinel_event_fd(void)
{
	return shim.event_fd;
}

/* The memfd of the residency map, which emulated and paged tiers have; -1: none. */
API int sentinel_residency_fd(void)
{
	int fd;

	pthread_mutex_lock(&shim.lock);
	fd = shim.emulation ? shim.emulation->fd : -1;
	pthread_mutex_unlock(&shim.lock);
	return fd;
}

/* The mapped control segment: words, then the ring. */
API void *sentinel_control_words(void)
{
	return shim.control;
}

/* Set the descriptor with which the shim begins the kernel module's epochs, and take ownership of
   it. -1: begin no more epochs. */
API void sentinel_epoch_fd(int fd)
{
	pthread_mutex_lock(&shim.lock);
	if (shim.epoch_fd >= 0)
		close(shim.epoch_fd);
	shim.epoch_fd = fd;
	pthread_mutex_unlock(&shim.lock);
}

/*
 * Record whether the shim is connected to a daemon. Without a daemon, a step begins as if
 * no flag were set, and no barrier waits. The epoch fd is closed, because it would keep
 * the kernel module from unloading.
 */
API void sentinel_connected(int connected)
{
	shim.connected = connected;
	if (!connected)
		sentinel_epoch_fd(-1);
}

/*
 * Stop using the live layout and its arena. The arena stays mapped while it holds
 * live tensors. Its dead pages, which the layout may have kept for later tensors, are
 * dropped, because no tensor is born in this arena any more. The mode REPLAY changes to
 * DIVERGED, because this layout must not serve allocations that the step's owner (the
 * thread that began the step) still makes before the next step begins. The owner makes
 * such allocations if a finalizer allocates tensors, or if another thread calls this
 * function during the owner's step. Needs the lock.
 */
static void retire_arena(void)
{
	if (!shim.arena)
		return;
	if (shim.mode == SENTINEL_MODE_REPLAY)
		shim.mode = SENTINEL_MODE_DIVERGED;
	paging_pass(SCHEDULE_NOWHERE, true);
	arena_drop_dead(shim.arena);
	shim.arena->older = shim.older;
	shim.older = shim.arena;
	shim.arena = NULL;
}

/* Replace shim.emulation and delete the former one. emulation: NULL if the tiers are the kernel's
   nodes. Needs the lock. */
static void replace_emulation(struct emulation *emulation)
{
	if (shim.emulation)
		emulation_delete(shim.emulation);
	shim.emulation = emulation;
}

/* Number of former layouts' arenas that hold live tensors. Needs the lock. */
static int older_count(void)
{
	int count = 0;

	for (const struct arena *arena = shim.older; arena; arena = arena->older)
		count += arena->live_tensors != 0;
	return count;
}

/* Publish the live arena's address and size, and the layout's id. Needs the lock. */
static void publish_arena(uint64_t layout_id)
{
	publish(arena_base, shim.arena ? (uintptr_t)shim.arena->base : 0);
	publish(arena_bytes, shim.arena ? shim.arena->bytes : 0);
	publish(layout_id, layout_id);
}

/*
 * Start the pager, or give a running pager new settings: see struct paging_settings.
 * Call this between two steps, before sentinel_layout(). Takes ownership of the
 * descriptors. Returns NULL, or a description of the problem.
 */
API const char *sentinel_paging(int file, uint64_t bytes, uint64_t bytes_max, int wake, uint64_t budget_pages)
{
	struct paging_settings settings = {
		.file = file,
		.bytes = bytes,
		.bytes_max = bytes_max,
		.wake = wake,
		.budget_pages = budget_pages,
	};
	const char *problem;

	/* paging_start() reads heap.top_page; the lock keeps other threads from raising
	   top_page. */
	pthread_mutex_lock(&shim.lock);
	problem = paging_start(&shim.heap, &settings);
	pthread_mutex_unlock(&shim.lock);
	return problem;
}

/*
 * Check the layout in the memfd and make it live from the next step on. Call this
 * between two steps. Returns NULL, or a description of the problem. If there is
 * a problem, the former layout stays live.
 */
API const char *sentinel_layout(int fd)
{
	struct emulation *emulation = NULL;
	struct layout layout;
	struct arena *arena = NULL;
	const char *problem;
	int32_t heap_node;
	bool emulated, full;
	uint64_t fast_pages;

	if (!shim.on)
		return "the shim is a passthrough";
	pthread_mutex_lock(&shim.lock);
	full = older_count() >= ARENAS_MAX;
	pthread_mutex_unlock(&shim.lock);
	if (full)
		return "too many arenas of former layouts still hold tensors";
	problem = layout_read(&layout, fd, 1ull << shim.heap.page_shift);
	if (problem)
		return problem;
	heap_node = layout.header->heap_node;
	emulated = layout_emulated(layout.header);
	problem = arena_new(&arena, &layout);
	if (problem) {
		layout_free(&layout);
		return problem;
	}
	fast_pages = arena->layout.header->fast_pages;
	problem = paging_add(arena);
	if (!problem && !emulated && memory_prefer(shim.heap.base, shim.heap.bytes, heap_node))
		problem = MBIND_REFUSED;
	if (problem) {
		arena_delete(arena);
		return problem;
	}
	pthread_mutex_lock(&shim.lock);
	residency_arrive();
	if (emulated)
		problem = emulation_new(&emulation, &arena->layout, &shim.heap, paging_runs(), shim.emulation,
					(uint32_t)shim.step);
	if (problem) {
		pthread_mutex_unlock(&shim.lock);
		arena_delete(arena);
		return problem;
	}
	paging_use(emulation, arena);
	replace_emulation(emulation);
	retire_arena();
	shim.arena = arena;
	shim.first_replay_step = 0;
	publish(diverged_in_row, 0);
	shim.drop_frees = true;
	heap_drop_free(&shim.heap);
	publish_arena(arena->layout.header->layout_id);
	pthread_mutex_unlock(&shim.lock);
	if (fast_pages)
		paging_set_budget(fast_pages);
	return NULL;
}

/* Stop using the layout: all tensors are born in the heap again. Call this between two steps. */
API void sentinel_detach(void)
{
	pthread_mutex_lock(&shim.lock);
	retire_arena();
	/* Keep the emulation, without a layout: the next emulation copies this one's heap map. */
	if (shim.emulation)
		shim.emulation->layout = NULL;
	shim.drop_frees = false;
	publish_arena(0);
	pthread_mutex_unlock(&shim.lock);
	memory_prefer(shim.heap.base, shim.heap.bytes, -1);
}
