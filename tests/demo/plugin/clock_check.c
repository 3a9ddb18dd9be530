// SPDX-License-Identifier: GPL-2.0-only
/* Checks the modelled clock (clock.c); tests/unit/demo/test_plugin_clock.py runs this program. */
#undef NDEBUG
#include <assert.h>
#include <stdint.h>
#include <unistd.h>

/* Long, so that the wait of one thread does not time out while the other thread gets no host CPU. */
static uint64_t patience_ns = 600000000000ull;
#define CLOCK_PATIENCE_NS patience_ns

#include "clock.c"

#define SECOND_PS 1000000000000ull
static struct clock c;
static _Atomic uint64_t now_ps, idle_ps;
static _Atomic uint64_t apart_ps;

/* CPU 1 is charged 3 ms, with pauses of 0.2 ms; CPU 0 is charged 3 ms without pauses. */
static void *slow(void *arg)
{
	for (int i = 0; i < 300; i++) {
		usleep(200);
		clock_charge(&c, 1, 10000000);
	}
	clock_halt(&c, 1);
	return arg;
}

static void *fast(void *arg)
{
	for (int i = 0; i < 3000; i++) {
		uint64_t other_ps = atomic_load(&c.cpus[1].shown_ps);

		clock_charge(&c, 0, 1000000);
		if (atomic_load(&c.cpus[1].running) && c.cpus[0].time_ps > other_ps &&
		    c.cpus[0].time_ps - other_ps > apart_ps)
			apart_ps = c.cpus[0].time_ps - other_ps;
	}
	return arg;
}

int main(void)
{
	pthread_t threads[2];
	uint64_t before_ps, begin_ns = host_ns();

	clock_init(&c, &now_ps, &idle_ps);

	/* While all CPUs are halted, the clock advances with the host's time. */
	usleep(20000);
	clock_wake(&c, 0);
	assert(now_ps >= 20000000000ull && idle_ps == now_ps);
	assert(now_ps <= (host_ns() - begin_ns) * 1000);

	/* While one CPU runs, the clock advances only by the costs that this CPU is charged. */
	before_ps = now_ps;
	usleep(20000);
	clock_charge(&c, 0, SECOND_PS);
	assert(now_ps == before_ps + SECOND_PS);

	/* A CPU that wakes up starts at the machine's time, and waking it again changes nothing. */
	clock_wake(&c, 1);
	clock_wake(&c, 1);
	assert(c.cpus[1].time_ps == now_ps && idle_ps <= before_ps);

	/* A running CPU waits for one that is behind. */
	pthread_create(&threads[0], NULL, slow, NULL);
	pthread_create(&threads[1], NULL, fast, NULL);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	assert(apart_ps <= 3 * CLOCK_QUANTUM_PS);
	before_ps = now_ps;

	/* The wait ends although CPU 1 runs and does not proceed. */
	patience_ns = 20000000;
	clock_wake(&c, 1);
	clock_charge(&c, 0, SECOND_PS);
	assert(now_ps >= before_ps + SECOND_PS);

	/* clock_align() sets CPUs whose times are far apart to the machine's time. */
	clock_align(&c);
	assert(c.cpus[1].time_ps == now_ps && c.cpus[0].time_ps == now_ps);
	return 0;
}
