// SPDX-License-Identifier: Apache-2.0
/*
 * ATTACH accepts a process only if its start time equals the given start time, if all its user ids
 * equal the given uid, and if it is dumpable.
 */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define USER 1000

static uint64_t set_uids(uint64_t real_and_effective, uint64_t saved)
{
	/* the bare system call: the library function would change all threads */
	return syscall(SYS_setresuid, real_and_effective, real_and_effective, saved) ? errno : 0;
}

static uint64_t set_fsuid(uint64_t uid, uint64_t unused)
{
	(void)unused;
	setfsuid(uid);
	return 0;
}

static uint64_t set_dumpable(uint64_t dumpable, uint64_t unused)
{
	(void)unused;
	return prctl(PR_SET_DUMPABLE, dumpable) ? errno : 0;
}

static void *report_and_wait(void *tid)
{
	__atomic_store_n((uint64_t *)tid, gettid(), __ATOMIC_RELEASE);
	pause();
	return NULL;
}

static uint64_t start_thread(uint64_t unused, uint64_t again)
{
	uint64_t tid = 0;
	pthread_t thread;

	(void)unused;
	(void)again;
	if (pthread_create(&thread, NULL, report_and_wait, &tid))
		return 0;
	while (!__atomic_load_n(&tid, __ATOMIC_ACQUIRE))
		usleep(1000);
	return tid;
}

static int attach_owned(struct target *target, uint32_t uid)
{
	struct sentinel_attach how = {.pid = target->pid, .log_records = 4096};
	int fd = device_open();
	int ret;

	identify(&how);
	how.uid = uid;
	ret = attach_exactly(fd, how);
	close(fd);
	return ret;
}

static void check_start(void)
{
	struct target target = target_start();
	struct sentinel_attach how = {.pid = target.pid, .log_records = 4096};
	int fd = device_open();
	uint64_t started;

	identify(&how);
	started = how.start_ticks;
	for (int off = -1; off <= 1; off += 2) {
		how.start_ticks = started + off;
		CHECK(attach_exactly(fd, how) == -ESRCH, "another start time");
	}
	how.start_ticks = started;
	how.pid = target_call(&target, start_thread, 0, 0);
	CHECK(how.pid > 0 && attach_exactly(fd, how) == -ESRCH, "a thread");
	how.pid = target.pid;
	how.uid = (uint32_t)-1;
	CHECK(attach_exactly(fd, how) == -EINVAL, "the invalid uid");
	how.uid = 0;
	CHECK(!attach_exactly(fd, how), "the process itself");
	close(fd);
	target_stop(&target);
}

void check_owner(void)
{
	struct target target = target_start();

	check_start();
	CHECK(attach_owned(&target, USER) == -EPERM, "another user's process");
	CHECK(!target_call(&target, set_dumpable, 0, 0), "prctl");
	CHECK(attach_owned(&target, 0) == -EPERM, "a process that is not dumpable");
	CHECK(!target_call(&target, set_dumpable, 1, 0), "prctl");
	CHECK(!attach_owned(&target, 0), "an ordinary process");

	target_call(&target, set_fsuid, USER, 0);
	CHECK(!target_call(&target, set_dumpable, 1, 0), "prctl");
	CHECK(attach_owned(&target, 0) == -EPERM, "another fs uid");
	target_call(&target, set_fsuid, 0, 0);
	CHECK(!target_call(&target, set_uids, USER, 0), "setresuid");
	CHECK(attach_owned(&target, USER) == -EPERM, "a process that has changed its user");
	CHECK(!target_call(&target, set_dumpable, 1, 0), "prctl");
	CHECK(attach_owned(&target, USER) == -EPERM, "a process that can become root again");
	CHECK(!target_call(&target, set_uids, USER, USER), "setresuid");
	CHECK(attach_owned(&target, 0) == -EPERM, "a user's process as root's");
	CHECK(!attach_owned(&target, USER), "a user's process");
	target_stop(&target);
}
