// SPDX-License-Identifier: Apache-2.0
/*
 * LD_PRELOAD library that delays reads and writes of a paging file, or makes them fail.
 * An unlinked file that is open with O_DIRECT counts as a paging file.
 * Environment variables:
 *   DISK_SLOW_US: delay of each request in microseconds
 *   DISK_READS, DISK_WRITES: number of reads or writes that succeed; all later ones fail with EIO
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static long reads, writes;

static int is_paging_file(int file)
{
	struct stat status;

	return fcntl(file, F_GETFL) & O_DIRECT && !fstat(file, &status) && !status.st_nlink;
}

/* Delays a request to a paging file; returns whether the request must fail. */
static int disturbed(int file, const char *variable, long *count)
{
	const char *slow = getenv("DISK_SLOW_US"), *most = getenv(variable);

	if (!is_paging_file(file))
		return 0;
	if (slow)
		usleep((useconds_t)atol(slow));
	return most && __atomic_fetch_add(count, 1, __ATOMIC_RELAXED) >= atol(most);
}

ssize_t preadv(int file, const struct iovec *parts, int count, off_t offset)
{
	static ssize_t (*real)(int, const struct iovec *, int, off_t);

	if (!real)
		real = (ssize_t(*)(int, const struct iovec *, int, off_t))dlsym(RTLD_NEXT, "preadv");
	if (disturbed(file, "DISK_READS", &reads)) {
		errno = EIO;
		return -1;
	}
	return real(file, parts, count, offset);
}

ssize_t pwritev(int file, const struct iovec *parts, int count, off_t offset)
{
	static ssize_t (*real)(int, const struct iovec *, int, off_t);

	if (!real)
		real = (ssize_t(*)(int, const struct iovec *, int, off_t))dlsym(RTLD_NEXT, "pwritev");
	if (disturbed(file, "DISK_WRITES", &writes)) {
		errno = EIO;
		return -1;
	}
	return real(file, parts, count, offset);
}
