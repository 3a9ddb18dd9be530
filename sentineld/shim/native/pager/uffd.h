/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A userfaultfd of this process with UFFDIO_MOVE (Linux 6.8), which moves page
 * frames within the address space without copying them.
 *
 * System calls access tensors, too; for example, write(2) reads them when a
 * checkpoint is saved. A userfaultfd from /dev/userfaultfd also reports the faults of
 * these accesses. The system call userfaultfd(2) is not used, because the userfaultfd
 * that an unprivileged process gets from it reports only faults in user mode.
 */
#ifndef SENTINELD_SHIM_UFFD_H
#define SENTINELD_SHIM_UFFD_H

#include <stdbool.h>
#include <stdint.h>

/* Open a userfaultfd. device: an open /dev/userfaultfd, or -1 to open it here. Returns the
   descriptor, or -1 and a description of the problem. */
int uffd_open(int device, const char **problem);

/* Begin or stop reporting faults on absent pages of the range. Return 0 or -errno. */
int uffd_register(int uffd, void *address, uint64_t bytes);
int uffd_unregister(int uffd, void *address, uint64_t bytes);

/*
 * Move the frames of [from, from + bytes) to the absent range at `to`, which must be
 * registered, and wake the threads that wait for its pages. Returns the number of bytes
 * moved. If this is less than `bytes`, *error says why the next page did not move:
 *   EBUSY   another process shares the page, or the kernel has pinned it
 *   EEXIST  the destination is present
 *   ENOENT  the source is absent
 *   EINVAL  one of the ranges crosses the edge of a mapping, only one of them is locked by mlock(),
 *           or their protections differ
 *   EAGAIN  other threads kept changing the page or the address space
 */
uint64_t uffd_move(int uffd, void *to, void *from, uint64_t bytes, int *error);

/* Copy pages to the absent range at `to`, and wake the threads that wait for its pages. Returns the
   number of bytes copied, and sets *error as uffd_move() does. */
uint64_t uffd_copy(int uffd, void *to, const void *from, uint64_t bytes, int *error);

/* Wake the threads that wait for pages of the range. */
void uffd_wake(int uffd, void *address, uint64_t bytes);

/* Read the address of the next fault; returns false if there is none now. */
bool uffd_next_fault(int uffd, uintptr_t *address);

#endif
