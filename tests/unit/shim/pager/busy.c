// SPDX-License-Identifier: Apache-2.0
/* An ioctl() that moves no page of [busy_from, busy_to), as if the kernel had pinned these pages, and
   counts the tries. Each try takes at least busy_try_ns. After busy_tries_max tries, it moves these
   pages, too. Link this file with -Wl,--wrap=ioctl. */
#include <errno.h>
#include <sys/ioctl.h>
#include <time.h>

#include "uffd_abi.h"

__u64 busy_from, busy_to;
unsigned busy_tries, busy_tries_max = -1u;
long busy_try_ns;

int __real_ioctl(int fd, unsigned long request, void *argument);
int __wrap_ioctl(int fd, unsigned long request, void *argument);

int __wrap_ioctl(int fd, unsigned long request, void *argument)
{
	struct uffdio_move *move = argument;

	if (request != UFFDIO_MOVE || move->src + move->len <= busy_from || move->src >= busy_to ||
	    busy_tries == busy_tries_max)
		return __real_ioctl(fd, request, argument);
	if (move->src < busy_from) {
		move->len = busy_from - move->src;
		return __real_ioctl(fd, request, argument);
	}
	busy_tries++;
	if (busy_try_ns)
		nanosleep(&(struct timespec){.tv_nsec = busy_try_ns}, NULL);
	move->move = -EBUSY;
	errno = EBUSY;
	return -1;
}
