/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Enlarges the file to which the pager evicts pages. Each function takes the file's lock, and holds
 * it while the disk allocates space. The file's lock is taken before the pager's lock.
 */
#ifndef SENTINELD_SHIM_PAGING_FILE_H
#define SENTINELD_SHIM_PAGING_FILE_H

#include <pthread.h>
#include <stdint.h>

#include "pager/pager.h"

struct paging_file {
	pthread_mutex_t lock;
	/* constant while the pager runs */
	int fd; /* -1: there is no file */
	unsigned page_shift;
	_Atomic uint64_t bytes; /* while the pager runs, changes only under the lock */
	/* paging_file_grow() does not enlarge the file beyond this size */
	_Atomic uint64_t bytes_max;
	/* paging_file_grow() does not enlarge the file before this time (CLOCK_MONOTONIC), because its
	   last attempt has failed; 0: the file can be enlarged now */
	uint64_t retry_ms;
};

/* Enlarge the file to this size; if this fails, the file keeps its size. Returns NULL, or a
   description of the problem. */
const char *paging_file_enlarge(struct paging_file *file, struct pager *pager, uint64_t bytes);

/* If the file is nearly full, enlarge it by a quarter or 256 MiB, whichever is more. If the disk or
   bytes_max does not allow that much, enlarge the file by less. If the disk is full, the file keeps
   its size, and pages stay in memory. Returns the time in milliseconds after which to call this
   function again, even if the pager does not signal that the file is nearly full; -1: call it again
   only after this signal. */
int paging_file_grow(struct paging_file *file, struct pager *pager);

#endif
