// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "workers.h"

#include "threads.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static void put(struct job_queue *queue, struct job *job)
{
	job->next = NULL;
	*queue->end = job;
	queue->end = &job->next;
}

static struct job *take(struct job_queue *queue)
{
	struct job *job = queue->first;

	if (!job)
		return NULL;
	queue->first = job->next;
	if (!queue->first)
		queue->end = &queue->first;
	return job;
}

static struct job *next_job(struct workers *workers, bool writes_first)
{
	struct job *job = take(writes_first ? &workers->writes : &workers->reads);

	return job ? job : take(writes_first ? &workers->reads : &workers->writes);
}

static void *work(void *argument)
{
	struct workers *workers = argument;
	bool writes_first;
	struct job *job;

	pthread_setname_np(pthread_self(), "sentineld-io");
	pthread_mutex_lock(&workers->lock);
	writes_first = workers->started++ % 4 == 3;
	for (;;) {
		job = next_job(workers, writes_first);
		if (job) {
			pthread_mutex_unlock(&workers->lock);
			job->run(job);
			pthread_mutex_lock(&workers->lock);
		} else if (workers->stop) {
			break;
		} else {
			pthread_cond_wait(&workers->wake, &workers->lock);
		}
	}
	pthread_mutex_unlock(&workers->lock);
	return NULL;
}

int workers_start(struct workers *workers, unsigned count)
{
	int error = 0;

	if (!count || count > sizeof(workers->threads) / sizeof(*workers->threads))
		return -EINVAL;
	*workers = (struct workers){.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};
	workers->reads.end = &workers->reads.first;
	workers->writes.end = &workers->writes.first;
	while (workers->count < count && !error) {
		error = thread_start(&workers->threads[workers->count], work, workers);
		workers->count += !error;
	}
	if (error)
		workers_stop(workers);
	return -error;
}

void workers_stop(struct workers *workers)
{
	pthread_mutex_lock(&workers->lock);
	workers->stop = true;
	pthread_cond_broadcast(&workers->wake);
	pthread_mutex_unlock(&workers->lock);
	for (unsigned i = 0; i < workers->count; i++)
		pthread_join(workers->threads[i], NULL);
	workers->count = 0;
}

void workers_add(struct workers *workers, struct job *job, bool write)
{
	pthread_mutex_lock(&workers->lock);
	put(write ? &workers->writes : &workers->reads, job);
	pthread_cond_signal(&workers->wake);
	pthread_mutex_unlock(&workers->lock);
}

int read_whole(int file, void *memory, uint64_t bytes, uint64_t offset)
{
	for (uint64_t done = 0; done < bytes;) {
		ssize_t got = pread(file, (char *)memory + done, bytes - done, (off_t)(offset + done));

		if (got > 0)
			done += (uint64_t)got;
		else if (!got)
			return -EIO; /* the file is shorter than it was */
		else if (errno != EINTR)
			return -errno;
	}
	return 0;
}

int write_whole(int file, const void *memory, uint64_t bytes, uint64_t offset)
{
	for (uint64_t done = 0; done < bytes;) {
		ssize_t got = pwrite(file, (const char *)memory + done, bytes - done, (off_t)(offset + done));

		if (got > 0)
			done += (uint64_t)got;
		else if (!got)
			return -EIO;
		else if (errno != EINTR)
			return -errno;
	}
	return 0;
}
