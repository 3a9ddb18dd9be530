// SPDX-License-Identifier: Apache-2.0
/* Checks a full log, very large ranges, and the error codes for invalid arguments. */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FEATURES                                                                                             \
	(SENTINEL_FEATURE_SKIP | SENTINEL_FEATURE_BIRTHS | SENTINEL_FEATURE_UNKNOWN |                        \
	 SENTINEL_FEATURE_PRECISE_WRITE | SENTINEL_FEATURE_REARM | SENTINEL_FEATURE_AGE |                    \
	 SENTINEL_FEATURE_HUGE)

#define RETURNS(expected, call)                                                                              \
	do {                                                                                                 \
		int got = (call);                                                                            \
		CHECK(got == -(expected), "%s returned %d, not %d", #call, got, -(expected));                \
	} while (0)

static int attach_raw(int fd, pid_t pid, uint64_t records, uint32_t flags, uint64_t reserved)
{
	return attach_as(
		fd, (struct sentinel_attach){
			    .pid = pid, .flags = flags, .log_records = records, .reserved = {0, reserved}});
}

static int attach_rearming(int fd, pid_t pid, uint32_t rearm_us)
{
	return attach_as(fd, (struct sentinel_attach){.pid = pid, .log_records = 4096, .rearm_us = rearm_us});
}

static int range_reserved(int fd, unsigned long command, uint64_t start)
{
	struct sentinel_range range = {.start = start, .bytes = PAGE, .reserved = {0, 1}};

	return ioctl(fd, command, &range) ? -errno : 0;
}

static int map_log(int fd, size_t bytes, int kind, off_t offset)
{
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, kind, fd, offset);

	if (map == MAP_FAILED)
		return -errno;
	munmap(map, bytes);
	return 0;
}

/* Returns the result of ATTACH in a process that inherited the device but has no capabilities. */
static int attach_unprivileged(int fd, pid_t pid)
{
	pid_t child = fork();
	int status;

	if (child == 0) {
		struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
		struct __user_cap_data_struct none[2] = {{0}};

		CHECK(!syscall(SYS_capset, &header, none), "capset");
		_exit(-attach(fd, pid, 4096));
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status), "child");
	return -WEXITSTATUS(status);
}

static void check_attach(int fd, pid_t pid)
{
	int ended = fork();

	if (ended == 0)
		_exit(0);
	CHECK(waitpid(ended, NULL, 0) == ended, "child");
	RETURNS(EINVAL, attach_raw(fd, pid, 4095, 0, 0));
	RETURNS(EINVAL, attach_raw(fd, pid, 2048, 0, 0));
	RETURNS(EINVAL, attach_raw(fd, pid, 1 << 25, 0, 0));
	RETURNS(EINVAL, attach_raw(fd, pid, 6000, 0, 0));
	RETURNS(EINVAL, attach_raw(fd, pid, 4096, 2, 0));
	RETURNS(EINVAL, attach_raw(fd, pid, 4096, 0, 1));
	RETURNS(EINVAL, attach_rearming(fd, pid, SENTINEL_REARM_US_MIN - 1));
	RETURNS(EINVAL, attach_rearming(fd, pid, SENTINEL_REARM_US_MAX + 1));
	RETURNS(ESRCH, attach_raw(fd, ended, 4096, 0, 0));
	RETURNS(ESRCH, attach_raw(fd, 0, 4096, 0, 0));
	RETURNS(ESRCH, attach_raw(fd, -1, 4096, 0, 0));
	RETURNS(EPERM, attach_raw(fd, 2, 4096, 0, 0)); /* kthreadd */
	RETURNS(EPERM, attach_unprivileged(fd, pid));
	RETURNS(EFAULT, ioctl(fd, SENTINEL_IOC_ATTACH, NULL) ? -errno : 0);
	RETURNS(ENOTCONN, epoch_call(fd, 0, NULL));
	RETURNS(ENOTCONN, range_call(fd, SENTINEL_IOC_ADD_RANGE, 0, PAGE, NULL));
	RETURNS(ENOTCONN, map_log(fd, PAGE, MAP_SHARED, 0));
}

static void check_ranges(int fd, uint64_t address)
{
	RETURNS(0, range_call(fd, SENTINEL_IOC_ADD_RANGE, address, 100 * PAGE, NULL));
	RETURNS(EINVAL, range_call(fd, SENTINEL_IOC_ADD_RANGE, address + 1, PAGE, NULL));
	RETURNS(EINVAL, range_call(fd, SENTINEL_IOC_ADD_RANGE, address, PAGE + 1, NULL));
	RETURNS(EINVAL, range_call(fd, SENTINEL_IOC_ADD_RANGE, address, 0, NULL));
	RETURNS(EINVAL, range_call(fd, SENTINEL_IOC_ADD_RANGE, (1ul << 56) - 2 * PAGE, 2 * PAGE, NULL));
	RETURNS(EINVAL, range_call(fd, SENTINEL_IOC_ADD_RANGE, 1ul << 63, PAGE, NULL));
	RETURNS(EINVAL, range_call(fd, SENTINEL_IOC_ADD_RANGE, PAGE, -PAGE, NULL));
	RETURNS(EINVAL, range_reserved(fd, SENTINEL_IOC_ADD_RANGE, address + 200 * PAGE));
	RETURNS(EEXIST, range_call(fd, SENTINEL_IOC_ADD_RANGE, address, 100 * PAGE, NULL));
	RETURNS(EEXIST, range_call(fd, SENTINEL_IOC_ADD_RANGE, address + 99 * PAGE, 2 * PAGE, NULL));
	RETURNS(EEXIST, range_call(fd, SENTINEL_IOC_ADD_RANGE, address - PAGE, 200 * PAGE, NULL));
	RETURNS(E2BIG, range_call(fd, SENTINEL_IOC_ADD_RANGE, 1ul << 40, 1ul << 42, NULL));
	RETURNS(ENOENT, range_call(fd, SENTINEL_IOC_ARM, address - PAGE, PAGE, NULL));
	RETURNS(ENOENT, range_call(fd, SENTINEL_IOC_ARM, address, 101 * PAGE, NULL));
	RETURNS(ENOENT, range_call(fd, SENTINEL_IOC_DISARM, address + 100 * PAGE, PAGE, NULL));
	RETURNS(ENOENT, range_call(fd, SENTINEL_IOC_REMOVE_RANGE, address, 99 * PAGE, NULL));
	RETURNS(EINVAL, range_call(fd, SENTINEL_IOC_ARM, address + 8, PAGE, NULL));
	RETURNS(EINVAL, range_reserved(fd, SENTINEL_IOC_DISARM, address));
	RETURNS(0, range_call(fd, SENTINEL_IOC_ARM, address + PAGE, 98 * PAGE, NULL));
	RETURNS(0, range_call(fd, SENTINEL_IOC_REMOVE_RANGE, address, 100 * PAGE, NULL));
	RETURNS(ENOENT, range_call(fd, SENTINEL_IOC_REMOVE_RANGE, address, 100 * PAGE, NULL));
	for (int i = 0; i < 64; i++)
		RETURNS(0, range_call(fd, SENTINEL_IOC_ADD_RANGE, (uint64_t)(i * 37 % 64 + 1) << 30, PAGE,
				      NULL));
	RETURNS(ENOSPC, range_call(fd, SENTINEL_IOC_ADD_RANGE, address, PAGE, NULL));
	for (int i = 0; i < 64; i++)
		RETURNS(0, range_call(fd, SENTINEL_IOC_REMOVE_RANGE, (uint64_t)(i + 1) << 30, PAGE, NULL));
}

void check_arguments(void)
{
	struct target target = target_start();
	uint64_t address = target_call(&target, map_pages, 100, 1);
	struct sentinel_epoch bad = {.reserved = {1}};
	struct sentinel_info info;
	int fd = device_open();
	int other = device_open();
	unsigned int before;

	CHECK(!ioctl(fd, SENTINEL_IOC_INFO, &info), "INFO");
	CHECK(info.version == SENTINEL_UAPI_VERSION && info.page_bytes == PAGE, "INFO");
	CHECK(info.features == FEATURES, "features %x", info.features);
	before = info.sessions;
	check_attach(fd, target.pid);
	RETURNS(0, attach(fd, target.pid, 4096));
	RETURNS(EBUSY, attach(fd, target.pid, 4096));
	RETURNS(EBUSY, attach(other, target.pid, 4096));
	RETURNS(0, attach(other, getpid(), 4096));
	CHECK(!ioctl(fd, SENTINEL_IOC_INFO, &info) && info.sessions == before + 2, "%u sessions",
	      info.sessions);
	close(other);
	CHECK(!ioctl(fd, SENTINEL_IOC_INFO, &info) && info.sessions == before + 1, "%u sessions",
	      info.sessions);

	check_ranges(fd, address);
	RETURNS(EINVAL, epoch_call(fd, 2, NULL));
	RETURNS(EINVAL, ioctl(fd, SENTINEL_IOC_EPOCH, &bad) ? -errno : 0);
	RETURNS(EFAULT, ioctl(fd, SENTINEL_IOC_EPOCH, NULL) ? -errno : 0);
	RETURNS(EFAULT, ioctl(fd, SENTINEL_IOC_EPOCH_FD, NULL) ? -errno : 0);
	RETURNS(ENOTTY, ioctl(fd, _IO(SENTINEL_IOC_MAGIC, 0x40)) ? -errno : 0);
	RETURNS(ENOTTY, ioctl(fd, _IO(0x77, 1)) ? -errno : 0);
	RETURNS(0, map_log(fd, SENTINEL_LOG_OFFSET + 4096 * 16, MAP_SHARED, 0));
	RETURNS(EINVAL, map_log(fd, SENTINEL_LOG_OFFSET + 4097 * 16, MAP_SHARED, 0));
	RETURNS(EINVAL, map_log(fd, PAGE, MAP_PRIVATE, 0));
	RETURNS(EINVAL, map_log(fd, PAGE, MAP_SHARED, PAGE));
	close(fd);
	target_stop(&target);
}

/* A full log drops records and counts them. A tail out of bounds only makes the log look full. */
void check_log(void)
{
	struct target target = target_start();
	uint64_t address = target_call(&target, map_pages, 5000, 1);
	struct sampler sampler = sampler_open(target.pid, 4096);

	sampler_add(&sampler, address, 5000);
	sampler_arm(&sampler, address, 5000);
	target_call(&target, read_pages, address, 5000);
	CHECK(sampler.log->head == 4096 && sampler.log->lost == 904, "head %llu, lost %llu",
	      sampler.log->head, sampler.log->lost);
	CHECK(sampler_stats(&sampler).lost == 904 && sampler_stats(&sampler).hits == 5000, "stats");
	CHECK(sampler_count(&sampler, address, 4096, ANY_NODE) == 4096, "the first records were not kept");

	for (uint64_t tail = 4097; tail; tail <<= 7) {
		sampler.log->tail = tail;
		sampler.log->records = tail;
		sampler_epoch(&sampler);
		target_call(&target, read_pages, address, 100);
		CHECK(sampler.log->head == 4096, "head %llu with tail %lx", sampler.log->head, tail);
	}
	sampler.log->tail = 4096;
	sampler_epoch(&sampler);
	target_call(&target, read_pages, address, 100);
	CHECK(sampler_count(&sampler, address, 100, ANY_NODE) == 100, "the log does not work again");
	sampler_close(&sampler);
	target_stop(&target);
}

static uint64_t reserve(uint64_t bytes, uint64_t unused)
{
	void *map =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	(void)unused;
	CHECK(map != MAP_FAILED, "%s", strerror(errno));
	madvise(map, bytes, MADV_NOHUGEPAGE);
	return (uint64_t)map;
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/* A range far larger than memory, such as the shim's heap. */
void check_sparse(void)
{
	const uint64_t pages = 1ul << 26;
	struct target target = target_start();
	uint64_t address = target_call(&target, reserve, pages * PAGE, 0);
	uint64_t spot[] = {address, address + 12345678 * PAGE, address + (pages - 700) * PAGE};
	struct sampler sampler = sampler_open(target.pid, 1 << 14);
	double start = seconds(), added, armed, ended;
	struct sentinel_range range;

	sampler_add(&sampler, address, pages);
	added = seconds();
	for (int i = 0; i < 3; i++)
		target_call(&target, write_pages, spot[i], 500);
	armed = seconds();
	range = sampler_arm(&sampler, address, pages);
	ended = seconds();
	CHECK(range.pages_done == 1500 && range.pages_skipped == pages - 1500, "%llu, %llu", range.pages_done,
	      range.pages_skipped);
	for (int i = 0; i < 3; i++)
		target_call(&target, write_pages, spot[i], 600);
	CHECK(!epoch_call(sampler.fd, SENTINEL_EPOCH_RESIDENCY, NULL), "EPOCH");
	CHECK(sampler_stats(&sampler).hits == 1500 && sampler_stats(&sampler).births == 300, "counts");
	CHECK(sampler_stats(&sampler).armed_pages == 1800, "armed");
	CHECK(sampler_disarm(&sampler, address + PAGE, pages - PAGE / 512).pages_done == 1799, "disarm");
	target_call(&target, write_pages, address + (pages / 2) * PAGE, 10);
	CHECK(sampler_stats(&sampler).births == 300, "a birth in a disarmed part");
	printf("sparse: 256 GiB with 1500 pages: ADD_RANGE took %.4f s, ARM %.4f s\n", added - start,
	       ended - armed);
	sampler_close(&sampler);
	target_stop(&target);
}
