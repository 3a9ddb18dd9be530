/* SPDX-License-Identifier: Apache-2.0 */
/* Threads inside a training process, and eventfds that wake them. */
#ifndef SENTINELD_SHIM_THREADS_H
#define SENTINELD_SHIM_THREADS_H

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>
#include <unistd.h>

/* Like pthread_create(), but all signals are blocked in the new thread, so that the training's
   signal handlers do not run on it. */
static inline int thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument)
{
	sigset_t all, before;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(thread, NULL, run, argument);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

/* Give the calling thread a lower priority than the program's threads have: a delayed move costs the
   program less time than the preemption of one of its computing threads. On Linux, setpriority()
   affects only the calling thread. */
static inline void thread_give_way(void)
{
	setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + 5);
}

static inline void event_signal(int event)
{
	uint64_t one = 1;
	ssize_t written = write(event, &one, sizeof(one));

	(void)written; /* EAGAIN: the counter is full, so the reader wakes up anyway */
}

#endif
