// SPDX-License-Identifier: Apache-2.0
/* The target: a forked process that executes one call at a time. */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MPOL_BIND 2

struct call {
	target_call_t function;
	uint64_t first;
	uint64_t second;
};

static int epoch_fd = -1;

static void receive_call(int socket, struct call *call)
{
	char space[CMSG_SPACE(sizeof(int))];
	struct iovec part = {call, sizeof(*call)};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = space,
		.msg_controllen = sizeof(space),
	};
	ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);

	if (got == 0)
		_exit(0);
	CHECK(got == sizeof(*call), "recvmsg: %zd, %s", got, strerror(errno));
	if (message.msg_controllen) {
		close(epoch_fd);
		memcpy(&epoch_fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
	}
}

static void serve(int socket)
{
	struct call call;
	uint64_t result;

	for (;;) {
		receive_call(socket, &call);
		result = call.function ? call.function(call.first, call.second) : 0;
		CHECK(write(socket, &result, sizeof(result)) == sizeof(result), "%s", strerror(errno));
	}
}

struct target target_start(void)
{
	struct target target;
	int ends[2];

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), "%s", strerror(errno));
	fflush(stdout);
	target.pid = fork();
	CHECK(target.pid >= 0, "%s", strerror(errno));
	if (target.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		serve(ends[1]);
	}
	close(ends[1]);
	target.socket = ends[0];
	return target;
}

void target_begin(struct target *target, target_call_t function, uint64_t first, uint64_t second)
{
	struct call call = {function, first, second};

	CHECK(write(target->socket, &call, sizeof(call)) == sizeof(call), "%s", strerror(errno));
}

uint64_t target_end(struct target *target)
{
	uint64_t result;

	CHECK(read(target->socket, &result, sizeof(result)) == sizeof(result), "the target is gone");
	return result;
}

uint64_t target_call(struct target *target, target_call_t function, uint64_t first, uint64_t second)
{
	target_begin(target, function, first, second);
	return target_end(target);
}

void target_send_fd(struct target *target, int fd)
{
	char space[CMSG_SPACE(sizeof(int))] = {0};
	struct call call = {0};
	struct iovec part = {&call, sizeof(call)};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = space,
		.msg_controllen = sizeof(space),
	};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	CHECK(sendmsg(target->socket, &message, 0) == sizeof(call), "%s", strerror(errno));
	target_end(target);
}

void target_stop(struct target *target)
{
	close(target->socket);
	CHECK(waitpid(target->pid, NULL, 0) == target->pid, "%s", strerror(errno));
}

/* The address is not aligned to 2 MiB, so that watched ranges begin inside a chunk of 2 MiB. */
uint64_t map_pages(uint64_t pages, uint64_t populate)
{
	size_t chunk = 512 * PAGE;
	char *map = mmap(NULL, pages * PAGE + 2 * chunk, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint64_t address = ((uint64_t)map + chunk - 1) / chunk * chunk + 37 * PAGE;

	CHECK(map != MAP_FAILED, "%s", strerror(errno));
	CHECK(!madvise(map, pages * PAGE + 2 * chunk, MADV_NOHUGEPAGE), "%s", strerror(errno));
	if (populate)
		write_pages(address, pages);
	return address;
}

uint64_t bind_pages(uint64_t address, uint64_t pages_and_node)
{
	unsigned long nodes = 1ul << (pages_and_node & 255);

	CHECK(!syscall(SYS_mbind, address, (pages_and_node >> 8) * PAGE, MPOL_BIND, &nodes, 64, 0), "%s",
	      strerror(errno));
	return 0;
}

uint64_t read_pages(uint64_t address, uint64_t pages)
{
	uint64_t sum = 0;

	for (uint64_t i = 0; i < pages; i++)
		sum += *(volatile uint64_t *)(address + i * PAGE);
	return sum;
}

uint64_t write_pages(uint64_t address, uint64_t pages)
{
	for (uint64_t i = 0; i < pages; i++)
		*(volatile uint64_t *)(address + i * PAGE) = i;
	return 0;
}

uint64_t minor_faults(uint64_t address, uint64_t pages)
{
	struct rusage before, after;

	getrusage(RUSAGE_SELF, &before);
	read_pages(address, pages);
	getrusage(RUSAGE_SELF, &after);
	return after.ru_minflt - before.ru_minflt;
}

uint64_t epoch_by_fd(uint64_t flags, uint64_t unused)
{
	struct sentinel_epoch epoch;
	int ret = epoch_call(epoch_fd, flags, &epoch);

	(void)unused;
	return ret ? (uint64_t)ret : epoch.epoch;
}

uint64_t epoch_at(uint64_t argument, uint64_t unused)
{
	(void)unused;
	return ioctl(epoch_fd, SENTINEL_IOC_EPOCH, argument) ? (uint64_t)-errno : 0;
}
