// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "paged_memory.h"

#define RING_OFFSET 4096 /* the control words have a page of their own */

_Static_assert(sizeof(struct sentinel_control) == 512, "the control words are 512 bytes");
_Static_assert(sizeof(struct sentinel_record) == 32, "a record is 32 bytes");

void stalls_begin(bool exclude)
{
	shim.no_stalls = exclude && paging_runs();
	shim.stalled_ns = 0;
	if (!shim.no_stalls)
		return;
	shim.wall_ns = now_ns();
	shim.cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	shim.stalls = paging_stalls();
}

/* Add stalled time to stalled_ns; returns the present time. Needs the lock.

   paging_stalls() does not tell which thread has waited for a page. So if any thread has waited
   since the last call of count_stalls(), all time in which the owner has slept since that call
   counts as stalled.

   A record must have the returned time, and not a later one. If the kernel suspends the owner after
   this function has read the time, the next call can count this suspension as stalled. A record
   with a time after the suspension would then seem later than the records that follow it. */
static uint64_t count_stalls(void)
{
	uint64_t wall = now_ns(), cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID), stalls = paging_stalls();
	uint64_t slept = wall - shim.wall_ns - (cpu - shim.cpu_ns);

	if (stalls != shim.stalls && (int64_t)slept > 0)
		shim.stalled_ns += slept;
	shim.wall_ns = wall;
	shim.cpu_ns = cpu;
	shim.stalls = stalls;
	return wall;
}

/* Allocate all pages of the memfd now: if memory ran out later, a write to the mapping would raise
   SIGBUS. */
static int reserve(int fd, uint64_t bytes)
{
	struct rlimit limit;
	int error;

	/* Above RLIMIT_FSIZE, fallocate would raise SIGXFSZ. */
	if (getrlimit(RLIMIT_FSIZE, &limit))
		return -1;
	if (limit.rlim_cur < bytes) {
		errno = EFBIG;
		return -1;
	}
	do
		error = fallocate(fd, 0, 0, (off_t)bytes);
	while (error && errno == EINTR);
	return error;
}

int control_new(uint64_t ring_records)
{
	uint64_t bytes = RING_OFFSET + ring_records * sizeof(struct sentinel_record);
	int fd = memfd_create("sentinel-control", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	void *base;
	int error;

	if (fd < 0 || event_fd < 0 || reserve(fd, bytes))
		goto fail;
	/* The daemon maps the file, so its size must never change. */
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		goto fail;
	base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		goto fail;
	shim.control = base;
	shim.ring = (struct sentinel_record *)((char *)base + RING_OFFSET);
	shim.ring_mask = ring_records - 1;
	shim.control_fd = fd;
	shim.event_fd = event_fd;
	*shim.control = (struct sentinel_control){
		.magic = SENTINEL_CONTROL_MAGIC,
		.version = SENTINEL_SHIM_VERSION,
		.pid = (uint32_t)getpid(),
		.ring_offset = RING_OFFSET,
		.ring_records = ring_records,
	};
	return 0;
fail:
	error = errno;
	if (fd >= 0)
		close(fd);
	if (event_fd >= 0)
		close(event_fd);
	return -error;
}

void ring_put(enum sentinel_event event, uint8_t detail, uint64_t address, uint64_t bytes, uint32_t value,
	      uint16_t layer)
{
	struct sentinel_record *record;
	uint64_t now;

	if (shim.ring_head - observe(ring_tail) > shim.ring_mask) {
		publish(ring_lost, shim.control->ring_lost + 1);
		return;
	}
	now = shim.no_stalls && is_owner() ? count_stalls() : now_ns();
	record = &shim.ring[shim.ring_head & shim.ring_mask];
	record->time_ns = now - shim.stalled_ns;
	record->address = address;
	record->bytes = bytes;
	record->value = value;
	record->layer = layer;
	record->detail = detail;
	__atomic_store_n(&record->event, (uint8_t)event, __ATOMIC_RELEASE);
	publish(ring_head, ++shim.ring_head);
}
