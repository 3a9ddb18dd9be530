// SPDX-License-Identifier: Apache-2.0
/*
 * LD_PRELOAD library: fallocate() as on a file system that has no room for files larger than
 * DISK_ROOM bytes (environment variable). As on ext4, a call that fails keeps the blocks that it has
 * allocated before the failure. The first DISK_SIGNALS calls (environment variable; default: 0) are
 * interrupted by a signal; all later calls take at least DISK_SECONDS (environment variable;
 * default: 0). fstatvfs() reports DISK_FREE free bytes (environment variable; default: the bytes
 * that are free on the disk) in whole blocks of DISK_BLOCK bytes (environment variable; default:
 * those of the disk). Without DISK_FREE, DISK_BLOCK has no effect.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

unsigned begun_allocations;
unsigned failed_allocations;

int fallocate(int file, int mode, off_t offset, off_t bytes)
{
	int (*real)(int, int, off_t, off_t) = (int (*)(int, int, off_t, off_t))dlsym(RTLD_NEXT, "fallocate");
	off_t room = atol(getenv("DISK_ROOM"));
	const char *seconds = getenv("DISK_SECONDS"), *signals = getenv("DISK_SIGNALS");

	if (fcntl(file, F_GET_SEALS) >= 0)
		return real(file, mode, offset, bytes); /* a memfd, not a file on the disk */
	if (__atomic_fetch_add(&begun_allocations, 1, __ATOMIC_RELAXED) <
	    (signals ? (unsigned)atoi(signals) : 0)) {
		errno = EINTR;
		return -1;
	}
	if (seconds)
		sleep((unsigned)atoi(seconds));
	if (offset + bytes <= room)
		return real(file, mode, offset, bytes);
	__atomic_fetch_add(&failed_allocations, 1, __ATOMIC_RELAXED);
	if (!real(file, mode, offset, room - offset))
		errno = ENOSPC;
	return -1;
}

int fstatvfs(int file, struct statvfs *disk)
{
	int (*real)(int, struct statvfs *) = (int (*)(int, struct statvfs *))dlsym(RTLD_NEXT, "fstatvfs");
	const char *free_bytes = getenv("DISK_FREE"), *block_bytes = getenv("DISK_BLOCK");
	int result = real(file, disk);

	if (free_bytes && block_bytes)
		disk->f_frsize = (unsigned long)atol(block_bytes);
	if (free_bytes)
		disk->f_bavail = (fsblkcnt_t)atol(free_bytes) / disk->f_frsize;
	return result;
}
