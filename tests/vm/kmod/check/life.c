// SPDX-License-Identifier: Apache-2.0
/* Checks forks and exits of controllers and targets, ends of sessions, and uses of the epoch fd. */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 600ul

static uint64_t start_armed(struct target *target, struct sampler *sampler)
{
	uint64_t address;

	*target = target_start();
	address = target_call(target, map_pages, PAGES, 1);
	*sampler = sampler_open(target->pid, 1 << 14);
	sampler_add(sampler, address, PAGES);
	CHECK(sampler_arm(sampler, address, PAGES).pages_done == PAGES, "arm");
	sampler_epoch_fd(sampler, target);
	return address;
}

/* Checks that the session has ended and no page is armed: reading an armed page would take a fault. */
static void check_disarmed(struct target *target, uint64_t address)
{
	const uint64_t sum = PAGES * (PAGES - 1) / 2;
	int fd = device_open();

	CHECK(!attach(fd, target->pid, 4096), "the process is still attached");
	close(fd);
	CHECK(target_call(target, minor_faults, address, PAGES) == 0, "pages are still armed");
	CHECK(target_call(target, read_pages, address, PAGES) == sum, "data");
}

/* Runs `function` in a worker forked from the target; returns its result, which must be -255 to 0. */
static uint64_t in_worker(target_call_t function, uint64_t first, uint64_t second)
{
	pid_t worker = fork();
	int status;

	if (worker == 0)
		_exit(-(int)function(first, second));
	CHECK(waitpid(worker, &status, 0) == worker && WIFEXITED(status), "worker");
	return -(int64_t)WEXITSTATUS(status);
}

static uint64_t epoch_in_worker(uint64_t flags, uint64_t unused)
{
	return in_worker(epoch_by_fd, flags, unused);
}

static uint64_t other_ioctls(uint64_t unused, uint64_t fd)
{
	struct sentinel_stats stats;

	(void)unused;
	if (ioctl(fd, SENTINEL_IOC_STATS, &stats) == 0 || errno != ENOTTY)
		return 1;
	if (range_call(fd, SENTINEL_IOC_DISARM, 0, PAGE, NULL) != -ENOTTY)
		return 2;
	return mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? 0 : 3;
}

void check_epoch_fd(void)
{
	struct sentinel_epoch_fd out;
	struct sampler sampler;
	struct target target;
	uint64_t address = start_armed(&target, &sampler);

	CHECK(target_call(&target, epoch_by_fd, 0, 0) == 2, "epoch");
	CHECK(target_call(&target, epoch_by_fd, SENTINEL_EPOCH_RESIDENCY, 0) == 3, "epoch");
	CHECK(target_call(&target, epoch_by_fd, 2, 0) == (uint64_t)-EINVAL, "flags");
	CHECK(target_call(&target, epoch_in_worker, 0, 0) == (uint64_t)-EXDEV, "a forked worker");
	CHECK(target_call(&target, epoch_by_fd, 0, 0) == 4, "epoch");
	CHECK(!ioctl(sampler.fd, SENTINEL_IOC_EPOCH_FD, &out), "EPOCH_FD");
	CHECK(epoch_call(out.fd, 0, NULL) == -EXDEV, "the controller's own address space");
	CHECK(other_ioctls(0, out.fd) == 0, "an epoch fd accepts another ioctl");

	sampler_close(&sampler);
	CHECK(target_call(&target, epoch_by_fd, 0, 0) == (uint64_t)-ESRCH, "after the session");
	CHECK(target_call(&target, epoch_in_worker, 0, 0) == (uint64_t)-ESRCH, "after the session");
	check_disarmed(&target, address);
	close(out.fd);
	target_stop(&target);
}

/*
 * Called in a worker: writes to all pages, so that the kernel copies them. Returns -1 if
 * the data was wrong before the write, -2 if it was wrong after all writes, otherwise 0.
 */
static uint64_t write_own_copies(uint64_t address, uint64_t unused)
{
	volatile uint64_t *word;

	(void)unused;
	for (uint64_t i = 0; i < PAGES; i++) {
		word = (void *)(address + i * PAGE);
		if (*word != i)
			return -1;
		*word = ~i;
	}
	for (uint64_t i = 0; i < PAGES; i++) {
		word = (void *)(address + i * PAGE);
		if (*word != ~i)
			return -2;
	}
	return 0;
}

static uint64_t fork_and_write(uint64_t address, uint64_t unused)
{
	return in_worker(write_own_copies, address, unused);
}

static pid_t worker_pid;
static int worker_pipe[2];

/* Forks a worker that waits until finish_worker() is called. */
static uint64_t start_worker(uint64_t address, uint64_t unused)
{
	(void)unused;
	CHECK(!pipe(worker_pipe), "pipe");
	worker_pid = fork();
	if (worker_pid == 0) {
		char byte;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(read(worker_pipe[0], &byte, 1) == 1 ? -(int)write_own_copies(address, 0) : 9);
	}
	return worker_pid;
}

static uint64_t finish_worker(uint64_t first, uint64_t second)
{
	int status;

	(void)first;
	(void)second;
	CHECK(write(worker_pipe[1], "x", 1) == 1, "pipe");
	CHECK(waitpid(worker_pid, &status, 0) == worker_pid, "waitpid");
	return status;
}

void check_fork(void)
{
	const uint64_t sum = PAGES * (PAGES - 1) / 2;
	struct sampler sampler;
	struct target target;
	uint64_t address = start_armed(&target, &sampler);

	CHECK(target_call(&target, fork_and_write, address, 0) == 0, "the worker's data");
	CHECK(sampler_count(&sampler, address, PAGES, ANY_NODE) == 0, "accesses of a worker were logged");
	CHECK(target_call(&target, read_pages, address, PAGES) == sum, "data");
	CHECK(sampler_count(&sampler, address, PAGES, ANY_NODE) == PAGES, "the target is not armed any more");
	sampler_epoch(&sampler);

	/* a write must copy a page shared with a worker: the worker must not see the write */
	target_call(&target, start_worker, address, 0);
	target_call(&target, write_pages, address, PAGES);
	CHECK(sampler_count(&sampler, address, PAGES, ANY_NODE) == PAGES, "writes that copy");
	CHECK(sampler_stats(&sampler).passed_on >= PAGES, "the kernel did not handle the copies");
	sampler_epoch(&sampler);
	CHECK(sampler_stats(&sampler).armed_pages == PAGES, "the copies are not armed");
	CHECK(target_call(&target, finish_worker, 0, 0) == 0, "the worker's data");
	CHECK(target_call(&target, read_pages, address, PAGES) == sum, "data");
	CHECK(sampler_count(&sampler, address, PAGES, ANY_NODE) == PAGES, "reads");
	sampler_close(&sampler);
	check_disarmed(&target, address);
	target_stop(&target);
}

/* In a forked child of the controller: waits for a message, then checks that the session has ended. */
static void expect_ended_session(int signal_fd, int fd, pid_t pid, uint64_t address)
{
	char byte;

	CHECK(read(signal_fd, &byte, 1) == 1, "pipe");
	CHECK(epoch_call(fd, 0, NULL) == -ESRCH, "the session has not ended");
	CHECK(range_call(fd, SENTINEL_IOC_ARM, address, PAGE, NULL) == -ESRCH, "ARM");
	CHECK(range_call(fd, SENTINEL_IOC_ADD_RANGE, PAGE, PAGE, NULL) == -ESRCH, "ADD_RANGE");
	CHECK(attach(fd, pid, 4096) == -EBUSY, "the file got a second session");
	_exit(0);
}

/* The controller's last close() ends the session, even if a mapping and a child still hold the file. */
void check_close(void)
{
	struct sampler sampler;
	struct target target;
	uint64_t address = start_armed(&target, &sampler);
	int copy = dup(sampler.fd);
	int message[2], status;
	pid_t child;

	CHECK(!pipe(message), "pipe");
	child = fork();
	if (child == 0) {
		close(sampler.fd);
		expect_ended_session(message[0], copy, target.pid, address);
	}
	close(sampler.fd);
	sampler.fd = copy;
	sampler_epoch(&sampler);
	target_call(&target, read_pages, address, PAGES / 2);
	CHECK(sampler_count(&sampler, address, PAGES, ANY_NODE) == PAGES / 2, "the session has ended");
	CHECK(dup2(message[0], copy) == copy, "dup2");
	CHECK(sampler.log->head == PAGES / 2, "the log has changed");
	check_disarmed(&target, address);
	CHECK(write(message[1], "x", 1) == 1, "pipe");
	CHECK(waitpid(child, &status, 0) == child && status == 0, "the child");
	sampler_close(&sampler);
	target_stop(&target);
}

/* The controller is killed while a child of the controller and a worker of the target run. */
void check_kill(void)
{
	struct target target = target_start();
	uint64_t address = target_call(&target, map_pages, PAGES, 1);
	pid_t controller;
	int ready[2];
	char byte;

	CHECK(!pipe(ready), "pipe");
	controller = fork();
	if (controller == 0) {
		struct sampler sampler = sampler_open(target.pid, 4096);
		pid_t child;

		CHECK(dup(sampler.fd) > 0 && dup(sampler.fd) > 0, "dup");
		sampler_add(&sampler, address, PAGES);
		sampler_arm(&sampler, address, PAGES);
		sampler_epoch_fd(&sampler, &target);
		child = fork();
		if (child == 0) {
			close(ready[1]);
			pause();
		}
		CHECK(write(ready[1], &child, sizeof(child)) == sizeof(child), "pipe");
		pause();
	}
	close(ready[1]);
	{
		pid_t child;

		CHECK(read(ready[0], &child, sizeof(child)) == sizeof(child), "the controller failed");
		target_call(&target, start_worker, address, 0);
		kill(controller, SIGKILL);
		CHECK(waitpid(controller, NULL, 0) == controller, "waitpid");
		CHECK(read(ready[0], &byte, 1) == 0, "pipe");
		check_disarmed(&target, address);
		CHECK(target_call(&target, epoch_by_fd, 0, 0) == (uint64_t)-ESRCH, "epoch fd");
		CHECK(target_call(&target, finish_worker, 0, 0) == 0, "the worker's data");
		kill(child, SIGKILL);
	}
	target_stop(&target);
}

static uint64_t exec_sleep(uint64_t first, uint64_t second)
{
	(void)first;
	(void)second;
	execl("/proc/self/exe", "kmod-check", "--sleep", NULL);
	CHECK(false, "exec: %s", strerror(errno));
}

static void check_session_ended(struct sampler *sampler, uint64_t address)
{
	struct sentinel_stats stats;

	CHECK(range_call(sampler->fd, SENTINEL_IOC_ARM, address, PAGE, NULL) == -ESRCH, "ARM");
	CHECK(range_call(sampler->fd, SENTINEL_IOC_DISARM, address, PAGE, NULL) == -ESRCH, "DISARM");
	CHECK(range_call(sampler->fd, SENTINEL_IOC_ADD_RANGE, PAGE, PAGE, NULL) == -ESRCH, "ADD_RANGE");
	CHECK(epoch_call(sampler->fd, 0, NULL) == -ESRCH, "EPOCH");
	stats = sampler_stats(sampler);
	CHECK(stats.hits == 10, "%llu hits", stats.hits);
	CHECK(sampler_count(sampler, address, PAGES, ANY_NODE) == 10, "the log after the target's end");
	sampler_close(sampler);
}

/* The target is killed, or calls exec, while pages are armed. */
void check_end(void)
{
	struct sampler sampler;
	struct target target;
	uint64_t address = start_armed(&target, &sampler);

	target_call(&target, read_pages, address, 10);
	kill(target.pid, SIGKILL);
	target_stop(&target);
	check_session_ended(&sampler, address);

	address = start_armed(&target, &sampler);
	target_call(&target, read_pages, address, 10);
	target_begin(&target, exec_sleep, 0, 0);
	for (int i = 0; i < 1000 && epoch_call(sampler.fd, 0, NULL) == 0; i++)
		usleep(10000);
	check_session_ended(&sampler, address);
	kill(target.pid, SIGKILL);
	target_stop(&target);
}
