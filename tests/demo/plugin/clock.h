/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The modelled clock of an emulated machine: the time that real CPUs would take to execute the same
 * code, independent of the emulator's speed. docs/explanation/demo-clock.md explains the model.
 *
 * Each CPU has a time in picoseconds. Instructions and cache misses add their costs to it. Every
 * CLOCK_QUANTUM_PS, a CPU compares its time with the others' and waits while it is more than
 * CLOCK_QUANTUM_PS ahead of another CPU that executes code. If guest code on one CPU waits for code
 * on another, the length of this wait is therefore modelled, too. The machine's time is that of the
 * CPU that is furthest ahead.
 */
#ifndef DEMO_CLOCK_H
#define DEMO_CLOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CLOCK_CPUS_MAX 8
#define CLOCK_QUANTUM_PS 10000000ull /* 10 us */
/* A running CPU may be blocked in the emulator (by a device, or by a pause of all CPUs). A CPU that
   waits for others in a comparison therefore goes on if the time of the CPU that is furthest behind
   has not advanced for CLOCK_PATIENCE_NS of host time. */
#ifndef CLOCK_PATIENCE_NS
#define CLOCK_PATIENCE_NS 20000000ull
#endif

struct cpu_clock {
	uint64_t time_ps; /* used by this CPU's thread only */
	uint64_t next_ps; /* time of the next comparison with the other CPUs */
	_Atomic uint64_t shown_ps; /* time_ps at the last comparison; the other CPUs read it */
	_Atomic bool running; /* false while the CPU is halted */
};

struct clock {
	_Atomic uint64_t *now_ps; /* the machine's time */
	_Atomic uint64_t *idle_ps; /* the part of now_ps in which all CPUs were halted */
	pthread_mutex_t lock; /* protects `running` of all CPUs and halted_ns */
	uint64_t halted_ns; /* host time since which all CPUs are halted; 0: not all are */
	struct cpu_clock cpus[CLOCK_CPUS_MAX];
};

/* Keep the machine's time and idle time in these two words. No CPU may run yet. */
void clock_init(struct clock *clock, _Atomic uint64_t *now_ps, _Atomic uint64_t *idle_ps);

/* Set the times of all CPUs to the machine's time. No CPU may execute code during this call. */
void clock_align(struct clock *clock);

/* Compare a CPU's time with the others' times. Waits while it is too far ahead of a running CPU. */
void clock_compare(struct clock *clock, unsigned int cpu);

/* Record that the CPU is halted now. */
void clock_halt(struct clock *clock, unsigned int cpu);

/* Record that the CPU, which was halted, executes code again. */
void clock_wake(struct clock *clock, unsigned int cpu);

/* Add a cost to a CPU's time. */
static inline void clock_charge(struct clock *clock, unsigned int cpu, uint64_t cost_ps)
{
	struct cpu_clock *mine = &clock->cpus[cpu];

	if (!atomic_load_explicit(&mine->running, memory_order_relaxed))
		clock_wake(clock, cpu);
	mine->time_ps += cost_ps;
	if (mine->time_ps >= mine->next_ps)
		clock_compare(clock, cpu);
}

#endif
