/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim's state, one per process, and the functions that its files share.
 *
 * Threads: the owner of a step is the thread that began the step. Only the
 * owner's allocations and boundaries belong to the step. Any thread may become
 * the owner by beginning a step, even before another thread has ended its step.
 * So everything that is not atomic is read and written under `lock`. When a
 * function has released the lock and taken it again, it checks whether its thread
 * is still the owner. No thread holds the lock while it waits for moves, waits for
 * page frames, or pays a delay. The exception is fork(), which waits with the lock
 * held until the pager is idle.
 */
#ifndef SENTINELD_SHIM_SHIM_H
#define SENTINELD_SHIM_SHIM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "arena.h"
#include "clock.h"
#include "emulate.h"
#include "heap.h"
#include "protocol.h"

#define API __attribute__((visibility("default")))
#define unlikely(x) __builtin_expect(!!(x), 0)
/* Value of record.value and heap_birth.cursor for a tensor without a cursor, that is, one that
   the step's owner did not allocate. record.value also has this value if the tensor was allocated
   before this step. */
#define NOT_IN_SEQUENCE UINT32_MAX
#define ARENAS_MAX 8

struct shim {
	/* used by all threads at allocations and frees */
	/* false: libc10 serves all allocations (not started, self-test failed, hooks do not fit
	   torch, or forked child) */
	_Atomic bool on;
	_Atomic bool child; /* true: this is a forked child, and the control segment is the parent's */
	_Atomic bool drop_frees; /* true: a layout is live, so the heap drops dead pages */
	pthread_mutex_t lock;
	struct heap heap;
	struct arena *arena; /* arena of the live layout, or NULL */
	struct arena *older; /* list of arenas of former layouts that may still hold tensors */
	/* NULL: no residency map; dereference this pointer only under the lock */
	struct emulation *_Atomic emulation;

	/* the control segment */
	struct sentinel_control *control;
	struct sentinel_record *ring;
	uint64_t ring_head;
	uint64_t ring_mask;
	int control_fd;
	int event_fd;
	int epoch_fd; /* -1: none */

	/* the step */
	_Atomic pthread_t owner; /* 0: none */
	bool recording; /* whether to write ring records; set when a step begins, constant in the step */
	/* whether to advance the module's epoch at boundaries; set when a step begins, cleared if
	   advancing fails */
	bool epochs;
	bool no_stalls; /* whether SENTINEL_FLAG_NO_STALLS was set and the pager ran when the step began */
	uint64_t stalled_ns; /* time to subtract from the times of ring records */
	/* values of now_ns(), the owner's CPU time and paging_stalls() when stalled_ns was last
	   computed */
	uint64_t wall_ns, cpu_ns, stalls;
	_Atomic bool connected; /* whether the shim is connected to a daemon */
	/* a leaf module's forward has ended, and no boundary has been passed since: the next
	   allocation passes an OUTSIDE boundary (see protocol.h) */
	bool outside_pending;
	enum sentinel_mode mode;
	uint64_t step; /* number of steps begun */
	uint32_t index; /* index of the last passed boundary in the step */
	uint32_t cursor; /* number of allocations >= SENTINEL_TENSOR_BYTES_MIN since the step began */
	uint32_t next_cut; /* index of the next cut in the layout's table of cuts */
	uint32_t layer; /* layer of the last passed boundary */
	uint64_t first_replay_step; /* first step with the live layout; 0: it has not begun */
	/* 0, or the position for which a barrier timed out or found the heartbeat stale. While
	   moves_done is below this position, barriers do not wait. */
	_Atomic uint64_t stuck_position;
};

extern struct shim shim;

static inline bool is_owner(void)
{
	return shim.owner == pthread_self();
}

/* Store a word that the daemon reads. */
#define publish(word, value) __atomic_store_n(&shim.control->word, (value), __ATOMIC_RELEASE)
/* Add to a word that the daemon reads. */
#define publish_more(word, value) ((void)__atomic_fetch_add(&shim.control->word, (value), __ATOMIC_RELEASE))
/* Load a word that the daemon writes. */
#define observe(word) __atomic_load_n(&shim.control->word, __ATOMIC_ACQUIRE)

/* Emulated tiers: record in the residency map which moving pages have arrived. Needs the lock. */
static inline void residency_arrive(void)
{
	if (flight_active(shim.emulation))
		flight_arrive(shim.emulation, now_ns());
}

/* Create the control segment (ring.c). Returns 0 or -errno. */
int control_new(uint64_t ring_records);

/* Append a record, or count it as lost if the ring is full. Needs the lock. */
void ring_put(enum sentinel_event event, uint8_t detail, uint64_t address, uint64_t bytes, uint32_t value,
	      uint16_t layer);

/* Set whether the times of later records exclude the time in which the owner sleeps because a page
   is not in memory. For paged tiers; see count_stalls(). The caller must be the step's owner. Needs
   the lock. */
void stalls_begin(bool exclude);

/* Write one ALLOC record with detail SENTINEL_ALLOC_LIVE for each live tensor of heap and arenas, and
   a PLACED record for each placed tensor of the heap (live.c). Needs the lock. */
void ring_put_live(void);

/*
 * Functions of boundary.c. Call each without the lock, unless its comment says "Needs the lock".
 *
 * Pass a boundary of the owner's step. Returns the position with which to call barrier_wait(), or 0
 * if there is no need to wait. After the wait, if any, call stretch_begin().
 */
uint64_t boundary_pass(enum sentinel_boundary kind, uint32_t layer);

/* Wait until moves_done reaches the position, the timeout passes, or the daemon is gone. Returns at
   once if the moves for an earlier wait that was given up are still not done (moves_done is below
   shim.stuck_position). */
void barrier_wait(uint64_t position);

/* With emulated or paged tiers: add the delay of the new stretch (see emulation_charge()) to the
   debt; on paged tiers, this delay is 0. With SENTINEL_FLAG_RESIDENCY, also record which tiers
   serve the stretch's accesses. */
void stretch_begin(void);

/* Record that a leaf module's forward has ended. */
void boundary_leaf_ended(void);

/* Pass the boundaries that are due before the owner's next allocation: first an OUTSIDE boundary
   (see shim.outside_pending), then a cut. Needs the lock, but releases it while such a boundary is
   passed. */
void boundary_before_alloc(void);

/* With emulated tiers: the delay to pay now, in ns; 0 for a small delay, unless `all` is set. */
uint64_t debt_due(bool all);

/* Wait for debt_ns, and subtract the time spent from the debt. */
void debt_pay(uint64_t debt_ns);

/* Advance the cursor past optional slots (SENTINEL_SLOT_OPTIONAL) whose allocations are missing in
   this step. bytes: size of the next allocation; 0: the step has no further allocation. Needs the
   lock, and the mode SENTINEL_MODE_REPLAY. */
void skip_optional(uint64_t bytes);

/* End the step. Marks it as diverged if allocations or boundaries are missing. */
void step_end(void);

/* Begin a step and pass its boundary 0; the calling thread becomes the step's owner. Returns the
   position with which to call barrier_wait(), or 0, like boundary_pass(). */
uint64_t step_begin(void);

/* Mark the step as different from the layout: the heap serves the rest of the step. Needs the lock. */
void diverge(void);

#endif
