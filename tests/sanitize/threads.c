// SPDX-License-Identifier: Apache-2.0
/*
 * Two training threads and two workers that use the shim, for ThreadSanitizer and
 * AddressSanitizer: `threads SEED STEPS`.
 *
 * Each training thread runs steps as Python does: it calls hooks with the GIL, and
 * allocates and frees tensors without the GIL. Between two steps it makes the calls that
 * the shim makes for messages of the daemon (layouts, detach, epoch descriptors). A lock
 * ensures that only one thread at a time makes these calls. The steps are not locked: a
 * thread can begin a step while the other thread is within a step. The workers allocate
 * tensors at any time and free tensors of all threads. A further thread acts as the
 * daemon: it writes the daemon's words in the control segment (memory that the shim
 * shares with the daemon).
 */
#define _GNU_SOURCE
#include "shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE_BYTES 4096ull
#define HEAP_BYTES (4096 * PAGE_BYTES)
#define RING_RECORDS 256
#define TRAINERS 2
#define WORKERS 2
#define SLOTS 6 /* tensors of a step */
/* the beginnings of the step, of forward, of backward and of the optimizer; the end of forward;
   a cut */
#define BOUNDARIES 6
#define CUT_SLOT 3
#define SHARED 32 /* tensors that another thread may free */

#define require(truth) ((truth) ? (void)0 : abort())

extern int sentinel_start(uint64_t heap_bytes, uint64_t request_bytes_max, uint64_t ring_records);
extern void sentinel_enable(int on);
extern void sentinel_connected(int connected);
extern void sentinel_epoch_fd(int fd);
extern int sentinel_residency_fd(void);
extern const char *sentinel_layout(int fd);
extern void sentinel_detach(void);

extern void *_ZN3c109alloc_cpuEm(size_t bytes);
extern void _ZN3c108free_cpuEPv(void *address);

/* Functions that replace Python's. A mutex replaces the GIL. The address of a layer's object is the
   layer's number. */

typedef struct _object PyObject;
typedef PyObject *(*py_function)(PyObject *self, PyObject *argument);

struct py_method_def {
	const char *name;
	py_function function;
	int flags;
	const char *doc;
};

extern struct py_method_def *sentinel_methods(void);
extern void sentinel_none(PyObject *object);

long PyLong_AsLong(PyObject *number);
void Py_IncRef(PyObject *object);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *state);

static pthread_mutex_t gil = PTHREAD_MUTEX_INITIALIZER;
/* takes the place of the lock Shim._ending in sentineld/shim/runtime.py */
static pthread_mutex_t between_steps = PTHREAD_MUTEX_INITIALIZER;
static int none;

long PyLong_AsLong(PyObject *number)
{
	return (long)(uintptr_t)number;
}

void Py_IncRef(PyObject *object)
{
	require((void *)object == &none);
}

void *PyEval_SaveThread(void)
{
	pthread_mutex_unlock(&gil);
	return NULL;
}

void PyEval_RestoreThread(void *state)
{
	(void)state;
	pthread_mutex_lock(&gil);
}

/* each hook's index in sentinel_methods() */
enum hook { HOOK_FORWARD, HOOK_FORWARD_END, HOOK_BACKWARD, HOOK_OPTIMIZER, HOOK_STEP_END, HOOK_STEP_BEGIN };

static void call_hook(enum hook hook, uint32_t layer)
{
	PyObject *number = (PyObject *)(uintptr_t)layer;

	pthread_mutex_lock(&gil);
	/* The backward hook gets its layer as self, the forward hook as an argument: pass
	   the layer as both. */
	require((void *)sentinel_methods()[hook].function(number, number) == &none);
	pthread_mutex_unlock(&gil);
}

/* Tensors with a mark in their first and last 8 bytes. */

struct tensor {
	char *address;
	uint64_t bytes;
	uint64_t mark;
};

static struct tensor tensor_new(uint64_t bytes, uint64_t mark)
{
	struct tensor tensor = {.address = _ZN3c109alloc_cpuEm(bytes), .bytes = bytes, .mark = mark};

	require(tensor.address);
	memcpy(tensor.address, &mark, sizeof(mark));
	memcpy(tensor.address + bytes - sizeof(mark), &mark, sizeof(mark));
	return tensor;
}

static void tensor_delete(const struct tensor *tensor)
{
	if (!tensor->address)
		return;
	require(!memcmp(tensor->address, &tensor->mark, sizeof(tensor->mark)));
	require(!memcmp(tensor->address + tensor->bytes - sizeof(tensor->mark), &tensor->mark,
			sizeof(tensor->mark)));
	_ZN3c108free_cpuEPv(tensor->address);
}

static struct tensor shared[SHARED];
static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;

/* Put a tensor into the table `shared`, and delete the tensor that was in this place. */
static void exchange(struct tensor tensor, unsigned place)
{
	struct tensor before;

	pthread_mutex_lock(&shared_lock);
	before = shared[place % SHARED];
	shared[place % SHARED] = tensor;
	pthread_mutex_unlock(&shared_lock);
	tensor_delete(&before);
}

/*
 * The code below makes a layout for the steps of both threads. A thread's step follows the whole
 * layout unless the other thread begins a step before this step has ended.
 */

static uint64_t slot_bytes(unsigned slot)
{
	return (1 + slot % 3) * PAGE_BYTES;
}

/* The slot's allocation may be smaller than the slot, by up to this number of pages. */
static unsigned slot_slack(unsigned slot)
{
	return slot % 3;
}

/* Whether some steps make no allocation for the slot. */
static bool slot_optional(unsigned slot)
{
	return slot % 3 == 0;
}

struct file {
	struct sentinel_layout header;
	struct sentinel_slot slots[SLOTS];
	uint32_t cuts[2]; /* one cut, and padding */
	struct sentinel_region region;
	struct sentinel_wait waits[BOUNDARIES];
	struct sentinel_access accesses[BOUNDARIES];
};

static int layout_file(unsigned *seed, uint64_t layout_id)
{
	bool emulated = rand_r(seed) % 2;
	struct file file = {
		.header =
			{
				.magic = SENTINEL_LAYOUT_MAGIC,
				.version = SENTINEL_SHIM_VERSION,
				.layout_id = layout_id,
				.total_bytes = sizeof(file),
				.flags = emulated ? SENTINEL_LAYOUT_EMULATED : 0,
				.fast_pages = emulated ? 8 : 0,
				.heap_node = -1,
				.slot_count = SLOTS,
				.cut_count = 1,
				.region_count = 1,
				.boundary_count = BOUNDARIES,
				.access_count = emulated ? BOUNDARIES : 0,
				.slots_offset = offsetof(struct file, slots),
				.cuts_offset = offsetof(struct file, cuts),
				.regions_offset = offsetof(struct file, region),
				.waits_offset = offsetof(struct file, waits),
				.accesses_offset = offsetof(struct file, accesses),
			},
		.cuts = {CUT_SLOT},
	};
	int fd = memfd_create("layout", MFD_CLOEXEC);
	uint64_t offset = 0;

	for (unsigned slot = 0; slot < SLOTS; slot++) {
		file.slots[slot] = (struct sentinel_slot){
			.offset = offset,
			.bytes = slot_bytes(slot),
			.flags = SENTINEL_SLOT_PLANNED | (slot % 2 ? SENTINEL_SLOT_DROP : 0) |
				 (slot_optional(slot) ? SENTINEL_SLOT_OPTIONAL : 0),
			.slack = slot_slack(slot),
		};
		offset += slot_bytes(slot);
	}
	file.header.arena_bytes = offset;
	file.region = (struct sentinel_region){.offset = 0, .bytes = offset, .node = emulated ? 1 : -1};
	for (unsigned i = 0; i < BOUNDARIES; i++) {
		file.waits[i] = (struct sentinel_wait){
			.boundary = i,
			.flags = rand_r(seed) % 2 ? SENTINEL_WAIT_ENABLED : 0,
		};
		file.accesses[i] = (struct sentinel_access){
			.stretch = i,
			.pages = 2,
			.touched = 2,
			.slow_ps = 20000000, /* 20 us per page: 40 us for the two pages */
		};
	}
	require(fd >= 0 && write(fd, &file, sizeof(file)) == sizeof(file));
	return fd;
}

/* The training threads. */

static _Atomic uint64_t layouts;
static unsigned steps;

static void act_on_messages(unsigned *seed)
{
	int fd;

	switch (rand_r(seed) % 8) {
	case 0:
	case 1:
		fd = layout_file(seed, ++layouts);
		sentinel_layout(fd); /* fails if too many older arenas hold tensors */
		close(fd);
		sentinel_residency_fd();
		break;
	case 2:
		sentinel_detach();
		break;
	case 3:
		sentinel_epoch_fd(memfd_create("no epoch fd", MFD_CLOEXEC));
		break;
	case 4:
		sentinel_connected(rand_r(seed) % 4 != 0);
		break;
	default:
		break;
	}
}

/* Does the same as Shim.step_ended() in sentineld/shim/runtime.py. */
static void end_step(unsigned *seed)
{
	pthread_mutex_lock(&between_steps);
	call_hook(HOOK_STEP_END, 0);
	act_on_messages(seed);
	call_hook(HOOK_STEP_BEGIN, 0);
	pthread_mutex_unlock(&between_steps);
}

static void run_step(unsigned *seed, uint64_t mark)
{
	struct tensor tensors[SLOTS] = {0};
	bool whole = rand_r(seed) % 2;

	for (unsigned slot = 0; slot < SLOTS; slot++) {
		uint64_t less = whole ? 0 : rand_r(seed) % (slot_slack(slot) + 1);

		if (slot == 1)
			call_hook(HOOK_FORWARD, 1);
		if (slot == 2)
			call_hook(HOOK_FORWARD_END, 0);
		if (slot == 4)
			call_hook(HOOK_BACKWARD, 1);
		if (whole || !slot_optional(slot))
			tensors[slot] = tensor_new(slot_bytes(slot) - less * PAGE_BYTES, mark + slot);
	}
	call_hook(HOOK_OPTIMIZER, 0);
	for (unsigned slot = 0; slot < SLOTS; slot++) {
		if (rand_r(seed) % 8)
			tensor_delete(&tensors[slot]);
		else
			exchange(tensors[slot], (unsigned)rand_r(seed));
	}
}

static void *train(void *argument)
{
	unsigned seed = (unsigned)(uintptr_t)argument;

	for (uint64_t step = 0; step < steps; step++) {
		end_step(&seed);
		run_step(&seed, (uint64_t)seed << 32 | step * SLOTS);
		/* While this thread sleeps, the other thread's steps can follow the layout. */
		if (rand_r(&seed) % 16 == 0)
			usleep(2000);
	}
	return NULL;
}

/* The workers and the daemon. */

static _Atomic bool finished;

static void *work(void *argument)
{
	unsigned seed = (unsigned)(uintptr_t)argument;

	while (!finished) {
		uint64_t bytes =
			(1 + (uint64_t)rand_r(&seed) % 8) * PAGE_BYTES - (unsigned)rand_r(&seed) % 64;

		exchange(tensor_new(bytes, seed), (unsigned)rand_r(&seed));
	}
	return NULL;
}

static void *serve(void *argument)
{
	unsigned seed = (unsigned)(uintptr_t)argument;

	while (!finished) {
		uint32_t flags = (uint32_t)rand_r(&seed) &
				 (SENTINEL_FLAG_RECORD | SENTINEL_FLAG_EPOCHS | SENTINEL_FLAG_RESIDENCY);
		uint64_t position = observe(position);

		publish(flags, flags);
		publish(heartbeat, now_ns());
		publish(barrier_timeout_ns, 200000);
		publish(ring_tail, observe(ring_head));
		publish(wake_position, position + (unsigned)rand_r(&seed) % 4);
		if (rand_r(&seed) % 4)
			publish(moves_done, position);
		usleep(50);
	}
	return NULL;
}

int main(int count, char **arguments)
{
	pthread_t trainers[TRAINERS], others[WORKERS + 1];
	uintptr_t seed;

	require(count == 3);
	seed = strtoul(arguments[1], NULL, 10);
	steps = (unsigned)strtoul(arguments[2], NULL, 10);
	require(!sentinel_start(HEAP_BYTES, HEAP_BYTES, RING_RECORDS));
	sentinel_none((PyObject *)&none);
	sentinel_connected(1);
	sentinel_enable(1);
	for (unsigned i = 0; i < WORKERS; i++)
		require(!pthread_create(&others[i], NULL, work, (void *)(seed + i + 1)));
	require(!pthread_create(&others[WORKERS], NULL, serve, (void *)(seed + WORKERS + 1)));
	for (unsigned i = 0; i < TRAINERS; i++)
		require(!pthread_create(&trainers[i], NULL, train, (void *)(seed + 100 + i)));
	for (unsigned i = 0; i < TRAINERS; i++)
		pthread_join(trainers[i], NULL);
	finished = true;
	for (unsigned i = 0; i < WORKERS + 1; i++)
		pthread_join(others[i], NULL);
	for (unsigned place = 0; place < SHARED; place++)
		exchange((struct tensor){0}, place);
	require(!shim.heap.live_pages);
	require(!shim.arena || !shim.arena->live_tensors);
	printf("steps %llu, layouts %llu, diverged %llu\n", (unsigned long long)observe(step),
	       (unsigned long long)layouts, (unsigned long long)observe(diverged_steps));
	return 0;
}
