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

static bool others_wait(const struct workers *workers)
{
	return workers->queues[JOB_DEMANDED].first || (workers->demanded && workers->others >= OTHERS_MAX);
}

static struct job *next_job(struct workers *workers, bool writes_first)
{
	struct job *job = take(&workers->queues[JOB_DEMANDED]);

	if (job || others_wait(workers))
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

/* A job has ended: wake threads that waited because of others_wait(). Needs the lock. */
static void let_others_run(struct workers *workers, enum job_kind ended)
{
	if (others_wait(workers))
		return;
	if (!workers->demanded && ended == JOB_DEMANDED) {
		if (workers->paused)
			pthread_cond_broadcast(&workers->resume);
		if (others_queued(workers))
			pthread_cond_broadcast(&workers->wake);
	} else if (workers->demanded) {
		pthread_cond_signal(workers->paused ? &workers->resume : &workers->wake);
	}
}

/* Needs the lock, and releases it while the job runs. */
static void run(struct workers *workers, struct job *job)
{
	enum job_kind kind = job->kind;
	unsigned *running = kind == JOB_DEMANDED ? &workers->demanded : &workers->others;

	++*running;
	pthread_mutex_unlock(&workers->lock);
	job->run(job); /* the job can be added again at once, so it is not used after this */
	pthread_mutex_lock(&workers->lock);
	--*running;
	let_others_run(workers, kind);
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
		.resume = PTHREAD_COND_INITIALIZER,
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

/* Wake a thread for a job that was added. Needs the lock. */
static void wake_one(struct workers *workers, enum job_kind kind)
{
	if (kind == JOB_DEMANDED && workers->paused)
		pthread_cond_signal(&workers->resume);
	else if (kind == JOB_DEMANDED || !others_wait(workers))
		pthread_cond_signal(&workers->wake);
}

void workers_add(struct workers *workers, struct job *job, enum job_kind kind)
{
	pthread_mutex_lock(&workers->lock);
	job->kind = kind;
	put(&workers->queues[kind], job);
	wake_one(workers, kind);
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
		job->kind = JOB_DEMANDED;
		put(&workers->queues[JOB_DEMANDED], job);
		wake_one(workers, JOB_DEMANDED);
	}
	pthread_mutex_unlock(&workers->lock);
}

void workers_pause(struct workers *workers)
{
	struct job *job;

	pthread_mutex_lock(&workers->lock);
	if (!others_wait(workers)) {
		pthread_mutex_unlock(&workers->lock);
		return;
	}
	workers->others--;
	workers->paused++;
	while (others_wait(workers)) {
		job = take(&workers->queues[JOB_DEMANDED]);
		if (job)
			run(workers, job);
		else
			pthread_cond_wait(&workers->resume, &workers->lock);
	}
	workers->paused--;
	workers->others++;
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
