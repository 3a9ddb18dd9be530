// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "workers.h"

#include "threads.h"

#include <errno.h>
#include <stdlib.h>

static void put(struct job_queue *queue, struct job *job)
{
	job->next = NULL;
	*queue->end = job;
	queue->end = &job->next;
}

static void put_first(struct job_queue *queue, struct job *job)
{
	job->next = queue->first;
	if (!queue->first)
		queue->end = &job->next;
	queue->first = job;
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
	struct job *job = take(&workers->queues[JOB_DEMANDED]);

	if (job || (workers->demanded && workers->others >= OTHERS_MAX))
		return job;
	job = writes_first ? take(&workers->queues[JOB_WRITE]) : NULL;
	for (unsigned kind = JOB_AHEAD; !job && kind < JOB_KINDS; kind++)
		job = take(&workers->queues[kind]);
	return job;
}

static bool others_queued(const struct workers *workers)
{
	for (unsigned kind = JOB_AHEAD; kind < JOB_KINDS; kind++)
		if (workers->queues[kind].first)
			return true;
	return false;
}

/* Run a job, and queue it again if it is not complete. Needs the lock, and releases it while the
   job runs. */
static void run(struct workers *workers, struct job *job)
{
	enum job_kind kind = job->kind;
	unsigned *running = kind == JOB_DEMANDED ? &workers->demanded : &workers->others;
	bool again;

	++*running;
	pthread_mutex_unlock(&workers->lock);
	/* If job->run() returns false, the job has ended, and another thread may immediately add it
	   again. So do not access the job after that. */
	again = job->run(job);
	pthread_mutex_lock(&workers->lock);
	--*running;
	if (again)
		put_first(&workers->queues[job->kind], job); /* workers_hurry() may have changed the kind */
	if (kind == JOB_DEMANDED && !workers->demanded && (others_queued(workers) || workers->stop))
		pthread_cond_broadcast(&workers->wake);
}

static void *work(void *argument)
{
	struct workers *workers = argument;
	bool writes_first;
	struct job *job;

	pthread_setname_np(pthread_self(), "sentineld-io");
	thread_give_way();
	pthread_mutex_lock(&workers->lock);
	writes_first = workers->started++ % 4 == 3;
	for (;;) {
		job = next_job(workers, writes_first);
		if (job)
			run(workers, job);
		else if (workers->stop && !others_queued(workers))
			break;
		else
			pthread_cond_wait(&workers->wake, &workers->lock);
	}
	pthread_mutex_unlock(&workers->lock);
	return NULL;
}

int workers_start(struct workers *workers, unsigned count)
{
	int error = 0;

	if (!count || count > sizeof(workers->threads) / sizeof(*workers->threads))
		return -EINVAL;
	*workers = (struct workers){
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.wake = PTHREAD_COND_INITIALIZER,
	};
	for (unsigned kind = 0; kind < JOB_KINDS; kind++)
		workers->queues[kind].end = &workers->queues[kind].first;
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

void workers_add(struct workers *workers, struct job *job, enum job_kind kind)
{
	pthread_mutex_lock(&workers->lock);
	job->kind = kind;
	put(&workers->queues[kind], job);
	pthread_mutex_unlock(&workers->lock);
	/* Signal after the unlock: a thread that is woken while the lock is held would only wait
	   for the lock. */
	pthread_cond_signal(&workers->wake);
}

void workers_run(struct workers *workers, struct job *job)
{
	pthread_mutex_lock(&workers->lock);
	job->kind = JOB_DEMANDED;
	run(workers, job);
	pthread_mutex_unlock(&workers->lock);
}

void workers_hurry(struct workers *workers, struct job *job)
{
	struct job_queue *queue;
	struct job **link;

	pthread_mutex_lock(&workers->lock);
	queue = &workers->queues[job->kind];
	link = &queue->first;
	while (*link && *link != job)
		link = &(*link)->next;
	if (*link) {
		*link = job->next;
		if (!job->next)
			queue->end = link;
		put(&workers->queues[JOB_DEMANDED], job);
		pthread_cond_signal(&workers->wake);
	}
	job->kind = JOB_DEMANDED;
	pthread_mutex_unlock(&workers->lock);
}

bool workers_yield(struct workers *workers, const struct job *job)
{
	bool yield;

	pthread_mutex_lock(&workers->lock);
	yield = job->kind != JOB_DEMANDED &&
		(workers->queues[JOB_DEMANDED].first || (workers->demanded && workers->others > OTHERS_MAX));
	pthread_mutex_unlock(&workers->lock);
	return yield;
}

int transfer_whole(int file, struct iovec *parts, int count, uint64_t offset, bool write)
{
	while (count) {
		ssize_t got = write ? pwritev(file, parts, count, (off_t)offset)
				    : preadv(file, parts, count, (off_t)offset);

		if (!got)
			return -EIO; /* the file has become shorter */
		if (got < 0 && errno != EINTR)
			return -errno;
		if (got < 0)
			continue;
		offset += (uint64_t)got;
		while (count && (size_t)got >= parts->iov_len) {
			got -= (ssize_t)parts->iov_len;
			parts++;
			count--;
		}
		if (count) {
			parts->iov_base = (char *)parts->iov_base + got;
			parts->iov_len -= (size_t)got;
		}
	}
	return 0;
}
