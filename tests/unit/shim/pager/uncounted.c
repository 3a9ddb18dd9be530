// SPDX-License-Identifier: Apache-2.0
/* An ioctl() that reports only the first half of the moved pages in every third successful
   UFFDIO_MOVE. Linux 6.18 leaves moved pages uncounted, too, if it has to try again within a call; see
   move() in frames.c. Link this file with -Wl,--wrap=ioctl. */
#include <errno.h>
#include <sys/ioctl.h>

#include "uffd_abi.h"

int __real_ioctl(int fd, unsigned long request, void *argument);
int __wrap_ioctl(int fd, unsigned long request, void *argument);

int __wrap_ioctl(int fd, unsigned long request, void *argument)
{
	static unsigned calls;
	struct uffdio_move *move = argument;
	int result = __real_ioctl(fd, request, argument);

	if (request != UFFDIO_MOVE || result || __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) % 3)
		return result;
	move->move = (__s64)(move->len / 8192 * 4096);
	errno = move->move ? EAGAIN : EEXIST;
	if (!move->move)
		move->move = -EEXIST;
	return -1;
}
