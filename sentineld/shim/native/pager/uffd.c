// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "uffd.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "uffd_abi.h"

#define TRIES 64

int uffd_open(int device, const char **problem)
{
	struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_MOVE};
	bool opened = device < 0;
	int uffd;

	if (opened)
		device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
	if (device < 0) {
		*problem = errno == ENOENT ? "the kernel has no /dev/userfaultfd (use Linux 6.8 or later)"
					   : "/dev/userfaultfd cannot be opened";
		return -1;
	}
	uffd = ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
	if (opened)
		close(device);
	if (uffd < 0) {
		*problem = "no userfaultfd can be created";
		return -1;
	}
	if (ioctl(uffd, UFFDIO_API, &api)) {
		close(uffd);
		*problem = "the kernel's userfaultfd cannot move pages (use Linux 6.8 or later)";
		return -1;
	}
	return uffd;
}

int uffd_register(int uffd, void *address, uint64_t bytes)
{
	struct uffdio_register range = {
		.range = {.start = (uintptr_t)address, .len = bytes},
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};

	return ioctl(uffd, UFFDIO_REGISTER, &range) ? -errno : 0;
}

int uffd_unregister(int uffd, void *address, uint64_t bytes)
{
	struct uffdio_range range = {.start = (uintptr_t)address, .len = bytes};

	return ioctl(uffd, UFFDIO_UNREGISTER, &range) ? -errno : 0;
}

/* Whether to try again after a call that moved or copied nothing. EAGAIN: another thread is changing
   the page or the address space at this moment. */
static bool again(int error, int *tries)
{
	if (error != EAGAIN || ++*tries >= TRIES)
		return false;
	sched_yield();
	return true;
}

uint64_t uffd_move(int uffd, void *to, void *from, uint64_t bytes, int *error)
{
	uint64_t done = 0;
	int tries = 0;

	while (done < bytes) {
		struct uffdio_move move = {
			.dst = (uintptr_t)to + done,
			.src = (uintptr_t)from + done,
			.len = bytes - done,
		};

		*error = ioctl(uffd, UFFDIO_MOVE, &move) ? errno : 0;
		if (move.move > 0) {
			done += (uint64_t)move.move;
			tries = 0;
		} else if (!again(*error, &tries)) {
			break;
		}
	}
	return done;
}

uint64_t uffd_copy(int uffd, void *to, const void *from, uint64_t bytes, int *error)
{
	uint64_t done = 0;
	int tries = 0;

	while (done < bytes) {
		struct uffdio_copy copy = {
			.dst = (uintptr_t)to + done,
			.src = (uintptr_t)from + done,
			.len = bytes - done,
		};

		*error = ioctl(uffd, UFFDIO_COPY, &copy) ? errno : 0;
		if (copy.copy > 0) {
			done += (uint64_t)copy.copy;
			tries = 0;
		} else if (!again(*error, &tries)) {
			break;
		}
	}
	return done;
}

void uffd_wake(int uffd, void *address, uint64_t bytes)
{
	struct uffdio_range range = {.start = (uintptr_t)address, .len = bytes};

	ioctl(uffd, UFFDIO_WAKE, &range);
}

bool uffd_next_fault(int uffd, uintptr_t *address)
{
	struct uffd_msg message;

	while (read(uffd, &message, sizeof(message)) == (ssize_t)sizeof(message)) {
		if (message.event != UFFD_EVENT_PAGEFAULT)
			continue;
		*address = (uintptr_t)message.arg.pagefault.address;
		return true;
	}
	return false;
}
