// SPDX-License-Identifier: Apache-2.0
/* Page faults are hooked while there is a session, and only then. */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 100ul
#define CONTROLLERS 3
#define ROUNDS 6

/* Returns true if ftrace calls a callback at the function. */
static bool hooked(const char *function)
{
	FILE *file = fopen("/sys/kernel/tracing/enabled_functions", "r");
	size_t length = strlen(function);
	bool found = false;
	char line[512];

	CHECK(file, "enabled_functions: %s", strerror(errno));
	while (fgets(line, sizeof(line), file))
		found |= !strncmp(line, function, length) && line[length] == ' ';
	fclose(file);
	return found;
}

static bool disable_ftrace(void)
{
	int fd = open("/proc/sys/kernel/ftrace_enabled", O_WRONLY);
	bool done = fd >= 0 && write(fd, "0", 1) == 1;

	close(fd);
	return done;
}

static void expect_unhooked(void)
{
	/* close() does not wait for unhooking, which ends once all tasks have left the hook */
	for (int i = 0; i < 3000 && (hooked("handle_mm_fault") || hooked("copy_vma")); i++)
		usleep(10000);
	CHECK(!hooked("handle_mm_fault") && !hooked("copy_vma"), "still hooked");
}

void check_hooking(void)
{
	struct target target = target_start();
	struct sentinel_info info;
	struct sampler first, second;
	int fd = device_open();

	CHECK(!ioctl(fd, SENTINEL_IOC_INFO, &info) && info.sessions == 0, "%u sessions", info.sessions);
	CHECK(info.features & SENTINEL_FEATURE_SKIP, "features %x", info.features);
	expect_unhooked();
	first = sampler_open(target.pid, 4096);
	CHECK(hooked("handle_mm_fault") && hooked("copy_vma"), "not hooked");
	CHECK(!disable_ftrace(), "ftrace was disabled during a session");
	second = sampler_open(getpid(), 4096);
	sampler_close(&first);
	usleep(500000);
	CHECK(hooked("handle_mm_fault") && hooked("copy_vma"), "unhooked before the last session");
	sampler_close(&second);
	expect_unhooked();
	CHECK(attach(fd, 2, 4096) == -EPERM, "a failed ATTACH");
	expect_unhooked();
	close(fd);
	target_stop(&target);
}

/* With kernel.ftrace_enabled=0, INFO answers as always, and ATTACH fails. */
void check_unhooked(void)
{
	struct sentinel_info info;
	int fd = device_open();
	int ret;

	CHECK(!ioctl(fd, SENTINEL_IOC_INFO, &info) && info.features, "features %x", info.features);
	ret = attach(fd, getpid(), 4096);
	CHECK(ret == -EBUSY, "ATTACH returned %d", ret);
	close(fd);
}

static void attach_and_detach(void)
{
	struct target target = target_start();
	uint64_t address = target_call(&target, map_pages, PAGES, 1);

	for (int round = 0; round < ROUNDS; round++) {
		struct sampler sampler = sampler_open(target.pid, 4096);
		size_t seen;

		sampler_add(&sampler, address, PAGES);
		CHECK(sampler_arm(&sampler, address, PAGES).pages_done == PAGES, "arm");
		target_call(&target, read_pages, address, PAGES);
		seen = sampler_count(&sampler, address, PAGES, ANY_NODE);
		CHECK(seen == PAGES, "round %d: %zu accesses seen", round, seen);
		sampler_close(&sampler);
		CHECK(target_call(&target, minor_faults, address, PAGES) == 0, "still armed");
	}
	target_stop(&target);
}

/* Several controllers begin and end sessions at the same time, while other processes fault. */
void check_race(void)
{
	pid_t controllers[CONTROLLERS];
	int status;

	for (int i = 0; i < CONTROLLERS; i++) {
		controllers[i] = fork();
		if (controllers[i] == 0) {
			attach_and_detach();
			_exit(0);
		}
	}
	for (int i = 0; i < CONTROLLERS; i++)
		CHECK(waitpid(controllers[i], &status, 0) == controllers[i] && status == 0, "controller");
	expect_unhooked();
}
