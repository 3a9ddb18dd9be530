// SPDX-License-Identifier: Apache-2.0
/* Reads of the file wait while `held_reads` is set, and evictions while `held_checksums` is set: an
   eviction begins with the checksums of its pages. Link this file with -Wl,--wrap=preadv and
   -Wl,--wrap=checksum. */
#define _GNU_SOURCE
#include <sys/uio.h>
#include <unistd.h>

#include "checksum.h"

#define PAUSE_US 500

int held_reads, held_checksums;

ssize_t __real_preadv(int file, const struct iovec *parts, int count, off_t offset);
ssize_t __wrap_preadv(int file, const struct iovec *parts, int count, off_t offset);
uint64_t __real_checksum(const void *data, uint64_t bytes);
uint64_t __wrap_checksum(const void *data, uint64_t bytes);

static void wait_while(const int *held)
{
	while (__atomic_load_n(held, __ATOMIC_ACQUIRE))
		usleep(PAUSE_US);
}

ssize_t __wrap_preadv(int file, const struct iovec *parts, int count, off_t offset)
{
	wait_while(&held_reads);
	return __real_preadv(file, parts, count, offset);
}

uint64_t __wrap_checksum(const void *data, uint64_t bytes)
{
	wait_while(&held_checksums);
	return __real_checksum(data, bytes);
}
