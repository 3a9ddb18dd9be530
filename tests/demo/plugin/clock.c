// SPDX-License-Identifier: GPL-2.0-only
/* The modelled clock of an emulated machine. */
#define _GNU_SOURCE
#include "clock.h"

#include <time.h>

#define NAP_NS 20000

static uint64_t host_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void show(struct clock *clock, struct cpu_clock *mine)
{
	uint64_t now_ps = atomic_load(clock->now_ps);

	atomic_store(&mine->shown_ps, mine->time_ps);
	while (now_ps < mine->time_ps && !atomic_compare_exchange_weak(clock->now_ps, &now_ps, mine->time_ps))
		;
}

void clock_init(struct clock *clock, _Atomic uint64_t *now_ps, _Atomic uint64_t *idle_ps)
{
	clock->now_ps = now_ps;
	clock->idle_ps = idle_ps;
	pthread_mutex_init(&clock->lock, NULL);
	clock->halted_ns = host_ns();
	for (unsigned int cpu = 0; cpu < CLOCK_CPUS_MAX; cpu++)
		atomic_store(&clock->cpus[cpu].running, false);
	clock_align(clock);
}

void clock_align(struct clock *clock)
{
	pthread_mutex_lock(&clock->lock);
	if (clock->halted_ns)
		clock->halted_ns = host_ns();
	for (unsigned int cpu = 0; cpu < CLOCK_CPUS_MAX; cpu++) {
		struct cpu_clock *mine = &clock->cpus[cpu];

		mine->time_ps = atomic_load(clock->now_ps);
		mine->next_ps = mine->time_ps + CLOCK_QUANTUM_PS;
		atomic_store(&mine->shown_ps, mine->time_ps);
	}
	pthread_mutex_unlock(&clock->lock);
}

/* The least of the times that the other running CPUs had at their last comparisons; UINT64_MAX if
   no CPU other than `cpu` runs. */
static uint64_t last_ps(struct clock *clock, unsigned int cpu)
{
	uint64_t last = UINT64_MAX;

	for (unsigned int other = 0; other < CLOCK_CPUS_MAX; other++) {
		struct cpu_clock *its = &clock->cpus[other];
		uint64_t shown_ps = atomic_load(&its->shown_ps);

		if (other != cpu && atomic_load(&its->running) && shown_ps < last)
			last = shown_ps;
	}
	return last;
}

void clock_compare(struct clock *clock, unsigned int cpu)
{
	static const struct timespec nap = {.tv_nsec = NAP_NS};
	struct cpu_clock *mine = &clock->cpus[cpu];
	uint64_t last = 0, since_ns = 0;

	show(clock, mine);
	for (;;) {
		uint64_t found = last_ps(clock, cpu);

		if (mine->time_ps <= found || mine->time_ps - found <= CLOCK_QUANTUM_PS)
			break;
		if (found != last || !since_ns) {
			last = found;
			since_ns = host_ns();
		} else if (host_ns() - since_ns > CLOCK_PATIENCE_NS) {
			break;
		}
		nanosleep(&nap, NULL);
	}
	mine->next_ps = mine->time_ps + CLOCK_QUANTUM_PS;
}

void clock_halt(struct clock *clock, unsigned int cpu)
{
	bool any = false;

	pthread_mutex_lock(&clock->lock);
	show(clock, &clock->cpus[cpu]);
	atomic_store(&clock->cpus[cpu].running, false);
	for (unsigned int other = 0; other < CLOCK_CPUS_MAX; other++)
		any |= atomic_load(&clock->cpus[other].running);
	if (!any && !clock->halted_ns)
		clock->halted_ns = host_ns();
	pthread_mutex_unlock(&clock->lock);
}

void clock_wake(struct clock *clock, unsigned int cpu)
{
	struct cpu_clock *mine = &clock->cpus[cpu];

	pthread_mutex_lock(&clock->lock);
	if (clock->halted_ns) {
		/* All CPUs were halted and waited for timers or devices. These use the host's time,
		   so the machine's time advances with it. */
		uint64_t idle_ps = (host_ns() - clock->halted_ns) * 1000;

		atomic_fetch_add(clock->now_ps, idle_ps);
		atomic_fetch_add(clock->idle_ps, idle_ps);
		clock->halted_ns = 0;
	}
	/* The machine's time may have advanced while the CPU was halted. */
	mine->time_ps = atomic_load(clock->now_ps);
	mine->next_ps = mine->time_ps + CLOCK_QUANTUM_PS;
	atomic_store(&mine->shown_ps, mine->time_ps);
	atomic_store(&mine->running, true);
	pthread_mutex_unlock(&clock->lock);
}
