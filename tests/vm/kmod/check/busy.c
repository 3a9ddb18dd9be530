// SPDX-License-Identifier: Apache-2.0
/* A target whose threads begin epochs all the time does not keep its session from ending. */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define THREADS 4
/* with SENTINEL_EPOCH_RESIDENCY, EPOCH examines all pages, so an EPOCH is nearly always running */
#define PAGES (128ul << 10)
#define START_LIMIT_S 60
#define END_LIMIT_S 3 /* after close(), which waits up to 2 s itself */

static void *begin_epochs(void *unused)
{
	int64_t ret;

	(void)unused;
	do
		ret = epoch_by_fd(SENTINEL_EPOCH_RESIDENCY, 0);
	while (ret > 0);
	return (void *)ret;
}

/* Begins epochs in several threads until the calls fail; returns the threads' error. */
static uint64_t begin_epochs_in_threads(uint64_t unused, uint64_t again)
{
	pthread_t thread[THREADS];
	void *error[THREADS];

	(void)unused;
	(void)again;
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&thread[i], NULL, begin_epochs, NULL), "thread");
	for (int i = 0; i < THREADS; i++) {
		CHECK(!pthread_join(thread[i], &error[i]), "join");
		CHECK(error[i] == error[0], "the threads' errors differ");
	}
	return (uint64_t)error[0];
}

static uint32_t session_count(int fd)
{
	struct sentinel_info info;

	CHECK(!ioctl(fd, SENTINEL_IOC_INFO, &info), "INFO");
	return info.sessions;
}

void check_busy(void)
{
	int fd = device_open();
	uint32_t before = session_count(fd);
	struct target target = target_start();
	uint64_t address = target_call(&target, map_pages, PAGES, 0);
	struct sampler sampler = sampler_open(target.pid, 4096);

	target_call(&target, read_pages, address, PAGES); /* maps the zero page, to use little memory */
	sampler_add(&sampler, address, PAGES);
	sampler_epoch_fd(&sampler, &target);
	target_begin(&target, begin_epochs_in_threads, 0, 0);
	for (int i = 0; *(volatile uint32_t *)&sampler.log->epoch < 10 * THREADS; i++) {
		CHECK(i < START_LIMIT_S * 100, "the threads begin too few epochs");
		usleep(10000);
	}

	sampler_close(&sampler);
	for (int i = 0; session_count(fd) > before; i++) {
		CHECK(i < END_LIMIT_S * 100, "the target keeps its session from ending");
		usleep(10000);
	}
	CHECK(target_end(&target) == (uint64_t)-ESRCH, "EPOCH");
	close(fd);
	target_stop(&target);
}
