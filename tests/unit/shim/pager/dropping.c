// SPDX-License-Identifier: Apache-2.0
/* An ioctl() that drops a page by madvise() as soon as the kernel has refused to move this page
   because a forked child shares it. This simulates another thread of the program that drops the
   page at that moment. Link this file with -Wl,--wrap=ioctl. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "uffd_abi.h"

__u64 dropped_page; /* address of the page; 0: none, or dropped already */

int __real_ioctl(int fd, unsigned long request, void *argument);
int __wrap_ioctl(int fd, unsigned long request, void *argument);

int __wrap_ioctl(int fd, unsigned long request, void *argument)
{
	struct uffdio_move *move = argument;
	int result = __real_ioctl(fd, request, argument);

	if (request != UFFDIO_MOVE || move->move != -EBUSY || move->src != dropped_page)
		return result;
	madvise((void *)dropped_page, 4096, MADV_DONTNEED);
	dropped_page = 0;
	errno = EBUSY;
	return result;
}
