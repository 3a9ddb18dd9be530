/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that run jobs. Each job reads or writes the backing file, so at most as
 * many requests are in flight as there are threads. Every fourth thread takes
 * writes first, the other threads take reads first. So neither reads nor writes
 * can delay the other kind for long.
 */
#ifndef SENTINELD_SHIM_WORKERS_H
#define SENTINELD_SHIM_WORKERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct job {
	struct job *next;
	void (*run)(struct job *job);
};

struct job_queue {
	struct job *first;
	struct job **end;
};

struct workers {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct job_queue reads;
	struct job_queue writes;
	unsigned count;
	unsigned started;
	bool stop;
	pthread_t threads[32];
};

/* Returns 0 or -errno. */
int workers_start(struct workers *workers, unsigned count);

/* End the threads; queued jobs run first. */
void workers_stop(struct workers *workers);

void workers_add(struct workers *workers, struct job *job, bool write);

/* Transfer all of the bytes. Return 0 or -errno. */
int read_whole(int file, void *memory, uint64_t bytes, uint64_t offset);
int write_whole(int file, const void *memory, uint64_t bytes, uint64_t offset);

#endif
