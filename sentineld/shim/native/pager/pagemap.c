// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "pagemap.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define PRESENT (1ull << 63)
#define SWAPPED (1ull << 62)

int pagemap_open(void)
{
	return open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
}

int64_t pagemap_read(int pagemap, const void *address, unsigned page_shift, uint64_t pages, bool *mapped)
{
	uint64_t entries[PAGEMAP_BATCH];
	off_t at = (off_t)(((uintptr_t)address >> page_shift) * sizeof(*entries));
	ssize_t got;

	if (pages > PAGEMAP_BATCH)
		pages = PAGEMAP_BATCH;
	got = pread(pagemap, entries, pages * sizeof(*entries), at);
	if (got < 0)
		return -errno;
	if (!got && pages)
		return -EIO;
	pages = (uint64_t)got / sizeof(*entries);
	for (uint64_t i = 0; i < pages; i++)
		mapped[i] = entries[i] & (PRESENT | SWAPPED);
	return (int64_t)pages;
}
