/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that run jobs. Each job reads or writes the backing file with blocking
 * system calls, so each thread has at most one request in flight.
 *
 * Demanded jobs, for which a thread of the program waits, come before all other
 * jobs. A disk serves the requests in flight in any order, so other jobs can delay a
 * demanded one. While a demanded job runs, a thread therefore begins a job of another
 * kind only if fewer than OTHERS_MAX jobs of other kinds run. Among the jobs of other
 * kinds, one thread in four runs writes first, and the other threads run reads first.
 */
#ifndef SENTINELD_SHIM_WORKERS_H
#define SENTINELD_SHIM_WORKERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#define OTHERS_MAX 2u

enum job_kind {
	JOB_DEMANDED, /* a job for which a thread waits */
	JOB_AHEAD, /* a read of pages next to demanded ones, before a thread waits for them */
	JOB_PLANNED, /* a read for pager_fetch() */
	JOB_WRITE,
	JOB_KINDS,
};

struct job {
	struct job *next;
	bool (*run)(struct job *job); /* returns true if it has to be called again to complete the job */
	enum job_kind kind;
};

struct job_queue {
	struct job *first;
	struct job **end;
};

struct workers {
	pthread_mutex_t lock;
	/* a job was added or became demanded, the last running demanded job ended, or `stop` was
	   set */
	pthread_cond_t wake;
	struct job_queue queues[JOB_KINDS];
	unsigned demanded; /* number of running jobs that were demanded when they began to run */
	unsigned others; /* number of other running jobs */
	unsigned count;
	unsigned started;
	bool stop;
	pthread_t threads[32];
};

/* Returns 0 or -errno. */
int workers_start(struct workers *workers, unsigned count);

/* End the threads after they have run the queued jobs. */
void workers_stop(struct workers *workers);

void workers_add(struct workers *workers, struct job *job, enum job_kind kind);

/* Run a job in the calling thread as a demanded job, instead of adding it. This avoids waiting for
   another thread to wake up. */
void workers_run(struct workers *workers, struct job *job);

/* Make a job a demanded job, because a thread now waits for it. The job must have been added and
   must not have ended. */
void workers_hurry(struct workers *workers, struct job *job);

/* Whether a running read should return now and go on later, because demanded jobs come first. */
bool workers_yield(struct workers *workers, const struct job *job);

/* Read or write all bytes of the parts, from `offset` in the file on. Changes parts[]. Returns 0 or
   -errno. */
int transfer_whole(int file, struct iovec *parts, int count, uint64_t offset, bool write);

#endif
