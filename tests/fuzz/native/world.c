// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
/* The Makefile's macros redirect these functions to world_*(), but must not do so in this file. */
#undef clock_gettime
#undef nanosleep
#undef pthread_atfork
#include "world.h"

#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define TIMEOUT_NS_MAX 60000000000ull /* a barrier's longest wait, as in boundary.c */
#define BARRIERS_PER_CALL 2 /* one allocation can pass two boundaries, each with a barrier */
#define START_NS 1000000000000000ull
#define TICK_NS 1000

#define require(truth) ((truth) ? (void)0 : abort())

extern void *_ZN3c109alloc_cpuEm(size_t bytes);
extern void _ZN3c108free_cpuEPv(void *address);

struct input input;

static struct shim pristine; /* the shim's state before its first start */
static uint64_t simulated_ns;
static uint64_t slept_ns; /* simulated sleep since the current call into the shim began */
static void (*daemon_acts)(void);

struct tensor {
	char *address;
	uint64_t bytes;
	uint64_t mark; /* written at both ends of the tensor */
};

static struct tensor tensors[TENSORS_MAX];
static unsigned live_count;
static uint64_t next_mark;

const char *__asan_default_options(void);

/* A layout can require tables of any size. Allocations above 64 MiB fail, as if memory ran out. */
const char *__asan_default_options(void)
{
	return "allocator_may_return_null=1:max_allocation_size_mb=64:handle_abort=1";
}

bool input_left(void)
{
	return input.at < input.end;
}

uint8_t take8(void)
{
	return input_left() ? *input.at++ : 0;
}

uint16_t take16(void)
{
	uint16_t low = take8();

	return (uint16_t)(low | take8() << 8);
}

uint64_t take64(void)
{
	uint64_t value = 0;

	for (unsigned shift = 0; shift < 64; shift += 8)
		value |= (uint64_t)take8() << shift;
	return value;
}

/* Time. */

int world_clock_gettime(clockid_t clock, struct timespec *now);
int world_nanosleep(const struct timespec *wanted, struct timespec *left);
int world_clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left);

uint64_t world_now_ns(void)
{
	return simulated_ns;
}

int world_clock_gettime(clockid_t clock, struct timespec *now)
{
	(void)clock;
	simulated_ns += TICK_NS;
	*now = (struct timespec){
		.tv_sec = (time_t)(simulated_ns / 1000000000ull),
		.tv_nsec = (long)(simulated_ns % 1000000000ull),
	};
	return 0;
}

/* The shim calls clock_nanosleep() to delay the training for slow pages of emulated tiers. */
int world_clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
	uint64_t until_ns = (uint64_t)until->tv_sec * 1000000000ull + (uint64_t)until->tv_nsec;

	(void)clock;
	(void)left;
	require(flags == TIMER_ABSTIME);
	if (until_ns > simulated_ns)
		simulated_ns = until_ns;
	return 0;
}

/*
 * Only waits at barriers call nanosleep(). Checks that the heartbeat is not stale, and that one
 * call into the shim sleeps no longer than BARRIERS_PER_CALL waits with the largest time-out, plus
 * one nanosleep() for each wait, by which the wait can overrun.
 */
int world_nanosleep(const struct timespec *wanted, struct timespec *left)
{
	uint64_t heartbeat = observe(heartbeat);
	uint64_t age = simulated_ns > heartbeat ? simulated_ns - heartbeat : heartbeat - simulated_ns;

	(void)wanted;
	(void)left;
	require(shim.connected);
	require(age <= SENTINEL_HEARTBEAT_STALE_NS);
	slept_ns += NAP_NS_MAX;
	simulated_ns += NAP_NS_MAX;
	require(slept_ns <= BARRIERS_PER_CALL * (TIMEOUT_NS_MAX + NAP_NS_MAX));
	if (daemon_acts)
		daemon_acts();
	return 0;
}

/* Forks. */

int world_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));

static void (*fork_prepare)(void);
static void (*fork_child)(void);

int world_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
	(void)parent;
	fork_prepare = prepare;
	fork_child = child;
	return 0;
}

void world_fork(void)
{
	struct emulation *forgotten;

	if (shim.child)
		return; /* a second fork would close the same descriptors again */
	fork_prepare();
	forgotten = shim.emulation;
	fork_child();
	/* The child's handler closes the residency map's descriptor, but does not free the map. */
	if (forgotten) {
		forgotten->fd = -1;
		emulation_delete(forgotten);
	}
}

/* Python. The address of a layer's PyObject is the layer's number. */

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

long PyLong_AsLong(PyObject *number)
{
	return (long)(uintptr_t)number;
}

void Py_IncRef(PyObject *object)
{
	require((void *)object == &pristine);
}

void *PyEval_SaveThread(void)
{
	return &simulated_ns;
}

void PyEval_RestoreThread(void *state)
{
	require(state == &simulated_ns);
}

void world_hook(enum hook hook, uint32_t layer)
{
	PyObject *number = (PyObject *)(uintptr_t)layer;
	py_function function = sentinel_methods()[hook].function;

	slept_ns = 0;
	/* The backward hook gets its layer as self, the forward hook as an argument: pass it as both. */
	require((void *)function(number, number) == &pristine);
}

/* The other thread. */

static sem_t requested, done;
static void (*request)(void);

static void *run_requests(void *unused)
{
	for (;;) {
		sem_wait(&requested);
		request();
		sem_post(&done);
	}
	return unused;
}

void world_on_other_thread(void (*function)(void))
{
	static bool started;
	pthread_t thread;

	if (!started) {
		sem_init(&requested, 0, 0);
		sem_init(&done, 0, 0);
		require(!pthread_create(&thread, NULL, run_requests, NULL));
		started = true;
	}
	request = function;
	sem_post(&requested);
	sem_wait(&done);
}

/* Tensors, marked at both ends to detect overwritten contents. */

static void each_mark(const struct tensor *tensor, void (*visit)(char *at, uint64_t mark))
{
	uint64_t last = tensor->bytes - sizeof(tensor->mark);

	visit(tensor->address, tensor->mark);
	if (last >= sizeof(tensor->mark))
		visit(tensor->address + last, tensor->mark);
}

static void write_mark(char *at, uint64_t mark)
{
	memcpy(at, &mark, sizeof(mark));
}

static void check_mark(char *at, uint64_t mark)
{
	require(!memcmp(at, &mark, sizeof(mark)));
}

static uint64_t bytes_taken(const struct tensor *tensor)
{
	bool whole_pages = heap_owns(&shim.heap, tensor->address) ||
			   (shim.arena && arena_owns(shim.arena, tensor->address));

	return whole_pages ? (tensor->bytes + PAGE_BYTES - 1) & ~(uint64_t)(PAGE_BYTES - 1) : tensor->bytes;
}

static void check_no_overlap(const struct tensor *one)
{
	for (const struct tensor *other = tensors; other < tensors + live_count; other++)
		require(one->address + bytes_taken(one) <= other->address ||
			other->address + bytes_taken(other) <= one->address);
}

void tensor_new(uint64_t bytes)
{
	struct tensor *tensor = &tensors[live_count];

	if (live_count == TENSORS_MAX || bytes < sizeof(tensor->mark))
		return;
	slept_ns = 0;
	tensor->address = _ZN3c109alloc_cpuEm(bytes);
	require(tensor->address);
	tensor->bytes = bytes;
	tensor->mark = ++next_mark;
	check_no_overlap(tensor);
	each_mark(tensor, write_mark);
	live_count++;
}

void tensor_free(unsigned number)
{
	struct tensor *tensor;

	if (!live_count)
		return;
	tensor = &tensors[number % live_count];
	each_mark(tensor, check_mark);
	_ZN3c108free_cpuEPv(tensor->address);
	*tensor = tensors[--live_count];
}

unsigned tensor_count(void)
{
	return live_count;
}

/* Begin and end. */

int file_of(const void *data, size_t size)
{
	static int fd = -1;

	if (fd < 0)
		fd = memfd_create("layout", MFD_CLOEXEC);
	require(fd >= 0 && !ftruncate(fd, 0) && pwrite(fd, data, size, 0) == (ssize_t)size);
	return fd;
}

void world_begin(const uint8_t *data, size_t size, void (*acts)(void))
{
	static bool known;

	if (!known)
		memcpy(&pristine, &shim, sizeof(shim));
	known = true;
	input = (struct input){data, data + size};
	daemon_acts = acts;
	simulated_ns = START_NS;
	next_mark = 0;
	require(!sentinel_start(HEAP_PAGES * PAGE_BYTES, HEAP_PAGES * PAGE_BYTES, RING_RECORDS));
	sentinel_none((PyObject *)&pristine);
	sentinel_enable(1);
	sentinel_connected(1);
}

static void check_arenas(void)
{
	uint64_t tensors_in_arenas = 0;

	for (unsigned i = 0; i < live_count; i++)
		tensors_in_arenas += shim.arena && arena_owns(shim.arena, tensors[i].address);
	require(shim.child || !shim.arena || shim.arena->live_tensors == tensors_in_arenas);
}

static void delete_arenas(struct arena *arena)
{
	while (arena) {
		struct arena *older = arena->older;

		require(shim.child || !arena->live_tensors);
		arena_delete(arena);
		arena = older;
	}
}

void world_end(void)
{
	check_arenas();
	while (live_count)
		tensor_free(live_count - 1);
	require(shim.child || !shim.heap.live_pages);
	delete_arenas(shim.arena);
	delete_arenas(shim.older);
	if (shim.emulation)
		emulation_delete(shim.emulation);
	munmap(shim.heap.base, shim.heap.bytes);
	munmap(shim.heap.block_at, shim.heap.pages * sizeof(*shim.heap.block_at));
	munmap(shim.heap.blocks, (shim.heap.pages + 2ull) * sizeof(*shim.heap.blocks));
	munmap(shim.control, PAGE_BYTES + RING_RECORDS * sizeof(*shim.ring));
	if (shim.epoch_fd >= 0)
		close(shim.epoch_fd);
	if (shim.event_fd >= 0)
		close(shim.event_fd);
	if (shim.control_fd >= 0)
		close(shim.control_fd);
	memcpy(&shim, &pristine, sizeof(shim));
}
