// SPDX-License-Identifier: Apache-2.0
/* A target that stalls in a fault on its own userfaultfd page does not stall its controller. */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 600ul
#define LIMIT_S 30 /* a call takes milliseconds, or forever if it stalls */

/* Returns a page of the caller; every access to it blocks until the process is killed. */
static uint64_t stalling_page(uint64_t unused, uint64_t again)
{
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register area = {.range = {.len = PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);

	(void)unused;
	(void)again;
	area.range.start = (uint64_t)page;
	CHECK(fd >= 0 && !ioctl(fd, UFFDIO_API, &api) && !ioctl(fd, UFFDIO_REGISTER, &area), "userfaultfd");
	return (uint64_t)page;
}

static void use_and_close(struct sampler *sampler, uint64_t address)
{
	struct sentinel_range range;

	CHECK(!range_call(sampler->fd, SENTINEL_IOC_ARM, address, PAGES * PAGE, &range), "ARM");
	CHECK(!epoch_call(sampler->fd, 0, NULL), "EPOCH");
	CHECK(!range_call(sampler->fd, SENTINEL_IOC_DISARM, address, PAGES * PAGE, &range), "DISARM");
	CHECK(!range_call(sampler->fd, SENTINEL_IOC_ARM, address, PAGES * PAGE, &range), "ARM");
	sampler_close(sampler);
}

void check_stalled(void)
{
	struct target target = target_start();
	uint64_t address = target_call(&target, map_pages, PAGES, 1);
	uint64_t page = target_call(&target, stalling_page, 0, 0);
	pid_t controller;
	int status, waited = 0;
	int ready[2];

	CHECK(!pipe(ready), "pipe");
	controller = fork();
	if (controller == 0) {
		struct sampler sampler = sampler_open(target.pid, 4096);

		sampler_add(&sampler, address, PAGES);
		sampler_epoch_fd(&sampler, &target);
		target_begin(&target, epoch_at, page, 0);
		usleep(500000);
		use_and_close(&sampler, address);
		_exit(0);
	}
	while (waitpid(controller, &status, WNOHANG) == 0 && waited++ < LIMIT_S * 100)
		usleep(10000);
	kill(target.pid, SIGKILL);
	CHECK(waited < LIMIT_S * 100, "the target's EPOCH blocks the controller");
	CHECK(status == 0, "the controller failed");
	target_stop(&target);
}
