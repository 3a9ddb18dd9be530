/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim's state, one per process, and what its files offer each other.
 *
 * Threads: the step's owner is the thread that runs the optimizer. It alone
 * moves cursor, boundary index and mode. Heap, arenas and ring are shared by
 * all threads under `lock`.
 */
#ifndef SENTINELD_SHIM_SHIM_H
#define SENTINELD_SHIM_SHIM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "arena.h"
#include "emulate.h"
#include "heap.h"
#include "protocol.h"

#define API __attribute__((visibility("default")))
#define unlikely(x) __builtin_expect(!!(x), 0)
#define NOT_IN_SEQUENCE UINT32_MAX /* record.value, heap_birth.cursor */
#define ARENAS_MAX 8

struct shim {
	/* read by every thread on every allocation */
	_Atomic bool on; /* false: passthrough (not started, self-test failed, forked child) */
	_Atomic bool child; /* a fork: the parent's tensors are copies here, its control page is not ours */
	_Atomic bool drop_frees; /* a layout is live: the heap's dead pages go back, too */
	pthread_mutex_t lock;
	struct heap heap;
	struct arena *arena; /* the live layout's, or NULL */
	struct arena *older;
	struct emulation *emulation; /* NULL: tiers are the kernel's */

	/* the control segment */
	struct sentinel_control *control;
	struct sentinel_record *ring;
	uint64_t ring_head;
	uint64_t ring_mask;
	int control_fd;
	int event_fd;
	int epoch_fd; /* -1: none */

	/* the step; the owner's alone, others read under the lock */
	pthread_t owner;
	bool owned;
	bool recording; /* latched at the step's begin, as is epochs */
	bool epochs;
	bool connected;
	bool outside_pending; /* a leaf's forward ended: the next allocation is outside */
	enum sentinel_mode mode;
	uint64_t step;
	uint32_t index; /* of the boundary passed last */
	uint32_t cursor;
	uint32_t next_cut;
	uint32_t layer;
	uint64_t first_replay_step;
	uint64_t stuck_position; /* a barrier timed out here: none waits until moves_done gets past it */
};

extern struct shim shim;

static inline bool is_owner(void)
{
	return shim.owned && pthread_equal(pthread_self(), shim.owner);
}

/* Store a word that the daemon reads. */
#define publish(word, value) __atomic_store_n(&shim.control->word, (value), __ATOMIC_RELEASE)
/* Load a word that the daemon writes. */
#define observe(word) __atomic_load_n(&shim.control->word, __ATOMIC_ACQUIRE)

uint64_t now_ns(void);

/* ring.c: the control segment. ring_put needs the lock. */
int control_new(uint64_t ring_records);
void ring_put(enum sentinel_event event, uint8_t detail, uint64_t address, uint64_t bytes, uint32_t value,
	      uint16_t layer);
/* One ALLOC record with detail SENTINEL_ALLOC_LIVE for each live tensor. */
void ring_put_live(void);

/*
 * boundary.c. boundary_pass returns the position that must be waited for, 0: none; once that is
 * done, stretch_begin.
 */
uint64_t boundary_pass(enum sentinel_boundary kind, uint32_t layer);
void barrier_wait(uint64_t position);
void stretch_begin(void);
/* What is due before the owner's allocation number `cursor`: OUTSIDE, then a cut. */
void boundary_before_alloc(void);
void step_end(void);
uint64_t step_begin(void);
/* Needs the lock: the rest of this step comes from the heap. */
void diverge(void);

#endif
