// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "paging_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define GROWTH_BYTES_MIN (256ull << 20)

/* If the disk has no room even for this growth, the disk counts as full. */
#define GROWTH_BYTES_LEAST (4ull << 20)

/* Time between a failed attempt to enlarge the file and the next attempt. It limits the number of
   attempts, because the pager can signal many times per second that the file is nearly full. */
#define RETRY_MS 5000u

/* Whether the file's disk has at least `bytes` free bytes; true if its free space is unknown. enlarge()
   calls this function first, because on a disk with too little room, fallocate() can allocate all free
   blocks before it fails, and until they are freed no program can write to the disk. */
static bool has_room(int fd, uint64_t bytes)
{
	struct statvfs disk;

	if (fstatvfs(fd, &disk) || !disk.f_blocks || !disk.f_frsize)
		return true;
	return disk.f_bavail >= bytes / disk.f_frsize + !!(bytes % disk.f_frsize);
}

/* Enlarge the file to `bytes` bytes. Returns 0 or -errno; -ENOMEM: no memory for the pager's
   tables. Needs the file's lock. */
static int enlarge(struct paging_file *file, struct pager *pager, uint64_t bytes)
{
	int error, undone;

	if (!has_room(file->fd, bytes - file->bytes))
		return -ENOSPC;
	do
		error = fallocate(file->fd, 0, 0, (off_t)bytes) ? -errno : 0;
	while (error == -EINTR);
	if (!error && !pager_file_grown(pager, bytes >> file->page_shift))
		error = -ENOMEM;
	if (!error) {
		file->bytes = bytes;
		return 0;
	}
	/* Free the blocks that fallocate() has added: ext4, for example, keeps the blocks that it
	   allocated before the disk was full. If ftruncate() fails, these blocks stay allocated
	   until the file is deleted. */
	undone = ftruncate(file->fd, (off_t)file->bytes);
	(void)undone;
	return error;
}

static bool no_room(int error)
{
	return error == -ENOSPC || error == -EDQUOT;
}

const char *paging_file_enlarge(struct paging_file *file, struct pager *pager, uint64_t bytes)
{
	int error;

	pthread_mutex_lock(&file->lock);
	error = bytes > file->bytes ? enlarge(file, pager, bytes) : 0;
	pthread_mutex_unlock(&file->lock);
	if (error == -ENOMEM)
		return "no memory for the pager's tables";
	if (no_room(error))
		return "the disk has no room for a larger paging file";
	return error ? "the paging file cannot be enlarged" : NULL;
}

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Does the work of paging_file_grow(). Needs the file's lock. */
static int grow(struct paging_file *file, struct pager *pager)
{
	uint64_t bytes = file->bytes, most = file->bytes_max;
	uint64_t growth = bytes / 4, now = now_ms();
	int error;

	if (bytes >= most || !pager_file_low(pager)) {
		file->retry_ms = 0;
		return -1;
	}
	if (now < file->retry_ms)
		return (int)(file->retry_ms - now);
	if (growth < GROWTH_BYTES_MIN)
		growth = GROWTH_BYTES_MIN;
	if (growth > most - bytes)
		growth = most - bytes;
	do {
		error = enlarge(file, pager, bytes + growth);
		growth /= 2;
	} while (no_room(error) && growth >= GROWTH_BYTES_LEAST);
	file->retry_ms = error ? now + RETRY_MS : 0;
	return error ? (int)RETRY_MS : -1;
}

int paging_file_grow(struct paging_file *file, struct pager *pager)
{
	int wait_ms;

	pthread_mutex_lock(&file->lock);
	wait_ms = grow(file, pager);
	pthread_mutex_unlock(&file->lock);
	return wait_ms;
}
