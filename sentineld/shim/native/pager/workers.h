/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that run jobs. Each job reads or writes the backing file, so at most as
 * many requests are in flight as there are threads.
 *
 * Demanded reads, for which a thread of the program waits, come before all other
 * jobs. While one runs, at most OTHERS_MAX of the other jobs run, because a disk
 * serves the requests in flight in any order. Of the other jobs, every fourth thread
 * takes writes first, and the other threads take reads first. So neither reads nor
 * writes can delay the other kind for long.
 */
#ifndef SENTINELD_SHIM_WORKERS_H
#define SENTINELD_SHIM_WORKERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define OTHERS_MAX 2u

enum job_kind {
	JOB_DEMANDED, /* a read for which a thread waits */
	JOB_AHEAD, /* a read of the pages behind such pages */
	JOB_PLANNED, /* another read */
	JOB_WRITE,
	JOB_KINDS,
};

struct job {
	struct job *next;
	void (*run)(struct job *job);
	enum job_kind kind;
};

struct job_queue {
	struct job *first;
	struct job **end;
};

struct workers {
	pthread_mutex_t lock;
	pthread_cond_t wake; /* a job was added, or a thread that has none may take one again */
	pthread_cond_t resume; /* a job that waits in workers_pause() may go on */
	struct job_queue queues[JOB_KINDS];
	unsigned demanded; /* number of demanded reads that run */
	unsigned others; /* number of other jobs that run and do not wait in workers_pause() */
	unsigned paused; /* number of jobs that wait in workers_pause() */
	unsigned count;
	unsigned started;
	bool stop;
	pthread_t threads[32];
};

/* Returns 0 or -errno. */
int workers_start(struct workers *workers, unsigned count);

/* End the threads; queued jobs run first. */
void workers_stop(struct workers *workers);

void workers_add(struct workers *workers, struct job *job, enum job_kind kind);

/* Make a job a demanded read, unless it already runs. */
void workers_hurry(struct workers *workers, struct job *job);

/* Called by a job that is not a demanded read, between two requests: let demanded reads go first. */
void workers_pause(struct workers *workers);

/* Transfer all of the bytes. Return 0 or -errno. */
int read_whole(int file, void *memory, uint64_t bytes, uint64_t offset);
int write_whole(int file, const void *memory, uint64_t bytes, uint64_t offset);

#endif
