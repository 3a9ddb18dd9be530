// SPDX-License-Identifier: Apache-2.0
/* Steps and the boundaries within them: position, epoch, wake-up, barrier. */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "epoch.h"

#define SPIN_NS 20000ull
#define NAP_NS 50000l
#define TIMEOUT_NS_MAX 60000000000ull
#define WAIT_ASKED 1u
#define WAIT_OF_STEP_BEFORE 2u

static uint32_t epoch_advance(uint32_t flags)
{
	struct epoch_request request = {
		.flags = flags & SENTINEL_FLAG_RESIDENCY ? EPOCH_RESIDENCY : 0,
	};

	while (ioctl(shim.epoch_fd, EPOCH_IOCTL, &request)) {
		if (errno == EINTR)
			continue;
		/* The session ended: the fd stays inert for good. */
		close(shim.epoch_fd);
		shim.epoch_fd = -1;
		shim.epochs = false;
		return 0;
	}
	return request.epoch;
}

void diverge(void)
{
	shim.mode = SENTINEL_MODE_DIVERGED;
	publish(mode, shim.mode);
	publish(diverged_steps, shim.control->diverged_steps + 1);
	publish(diverged_in_row, shim.control->diverged_in_row + 1);
}

static void record_boundary(enum sentinel_boundary kind, uint32_t layer, uint32_t epoch)
{
	pthread_mutex_lock(&shim.lock);
	ring_put(SENTINEL_EVENT_BOUNDARY, (uint8_t)kind, epoch, shim.cursor, shim.index, (uint16_t)layer);
	pthread_mutex_unlock(&shim.lock);
}

/* Position first, then the flags: the daemon sets SLEEPING first and then looks at the position. */
static void announce(void)
{
	__atomic_store_n(&shim.control->position, shim.step << 32 | shim.index, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&shim.control->flags, __ATOMIC_SEQ_CST) & SENTINEL_FLAG_SLEEPING) {
		uint64_t one = 1;
		ssize_t written = write(shim.event_fd, &one, sizeof(one));

		(void)written; /* EAGAIN: the daemon has wake-ups enough */
	}
}

/* The position whose moves must be done before boundary shim.index is passed; 0: none. */
static uint64_t wait_target(void)
{
	const struct sentinel_wait *wait;
	uint64_t step = shim.step;

	if (shim.mode != SENTINEL_MODE_REPLAY)
		return 0;
	wait = &shim.arena->layout.waits[shim.index];
	if (!(wait->flags & WAIT_ASKED))
		return 0;
	if (wait->flags & WAIT_OF_STEP_BEFORE) {
		if (step == shim.first_replay_step)
			return 0; /* the step before had another layout */
		step--;
	}
	return step << 32 | wait->boundary;
}

static uint64_t cross(enum sentinel_boundary kind, uint32_t layer, uint32_t epoch)
{
	shim.outside_pending = false;
	shim.layer = layer;
	publish(layer, layer);
	if (shim.recording)
		record_boundary(kind, layer, epoch);
	announce();
	return wait_target();
}

uint64_t boundary_pass(enum sentinel_boundary kind, uint32_t layer)
{
	uint32_t epoch = 0;

	shim.index++;
	if (shim.mode == SENTINEL_MODE_REPLAY && shim.index >= shim.arena->layout.header->boundary_count) {
		pthread_mutex_lock(&shim.lock);
		diverge();
		pthread_mutex_unlock(&shim.lock);
	}
	if (shim.epochs)
		epoch = epoch_advance(observe(flags));
	return cross(kind, layer, epoch);
}

static bool moves_done(uint64_t position)
{
	return observe(moves_done) >= position;
}

/* It may have beaten since `now` was read; a beat further ahead is no time at all. */
static bool daemon_lives(uint64_t now)
{
	uint64_t beat = observe(heartbeat);

	return now - beat <= SENTINEL_HEARTBEAT_STALE_NS || beat - now <= SENTINEL_HEARTBEAT_STALE_NS;
}

void barrier_wait(uint64_t position)
{
	uint64_t start, now, timeout;

	if (moves_done(position))
		return;
	if (shim.stuck_position && !moves_done(shim.stuck_position))
		return;
	shim.stuck_position = 0;
	timeout = observe(barrier_timeout_ns);
	if (!timeout)
		return;
	if (timeout > TIMEOUT_NS_MAX)
		timeout = TIMEOUT_NS_MAX;
	start = now = now_ns();
	while (!moves_done(position)) {
		if (!shim.connected || !daemon_lives(now))
			break;
		if (now - start >= timeout) {
			publish(barrier_timeouts, shim.control->barrier_timeouts + 1);
			shim.stuck_position = position;
			break;
		}
		if (now - start >= SPIN_NS) {
			struct timespec nap = {.tv_nsec = NAP_NS};

			nanosleep(&nap, NULL);
		}
		now = now_ns();
	}
	publish(barrier_wait_ns, shim.control->barrier_wait_ns + (now_ns() - start));
}

/* With emulated tiers: charge the stretch, and tell the meter of it. */
void stretch_begin(void)
{
	uint64_t fast_bytes = 0, slow_bytes = 0;
	struct served served;

	if (!shim.emulation || shim.mode != SENTINEL_MODE_REPLAY)
		return;
	if (!shim.index) {
		pthread_mutex_lock(&shim.lock);
		emulation_recount(shim.emulation, shim.heap.top_page);
		pthread_mutex_unlock(&shim.lock);
	}
	served = emulation_charge(shim.emulation, shim.index);
	if (!shim.recording || !(observe(flags) & SENTINEL_FLAG_RESIDENCY))
		return;
	pthread_mutex_lock(&shim.lock);
	emulation_resident(shim.emulation, shim.heap.top_page, &fast_bytes, &slow_bytes);
	ring_put(SENTINEL_EVENT_SERVED, 0, fast_bytes, slow_bytes, served.accesses, (uint16_t)shim.layer);
	ring_put(SENTINEL_EVENT_SERVED_FAST, 0, served.owed_ns, (uint64_t)shim.emulation->paid_ns,
		 served.fast, (uint16_t)shim.layer);
	pthread_mutex_unlock(&shim.lock);
}

/* A boundary within an allocation, where nobody knows who holds Python's lock. */
static void pass_here(enum sentinel_boundary kind, uint32_t layer)
{
	uint64_t target;

	if (emulation_due(shim.emulation, false))
		emulation_pay(shim.emulation);
	target = boundary_pass(kind, layer);
	if (target)
		barrier_wait(target);
	stretch_begin();
}

void boundary_before_alloc(void)
{
	const struct layout *layout;

	if (shim.outside_pending)
		pass_here(SENTINEL_BOUNDARY_OUTSIDE, 0);
	if (shim.mode != SENTINEL_MODE_REPLAY)
		return;
	layout = &shim.arena->layout;
	if (shim.next_cut < layout->header->cut_count && layout->cuts[shim.next_cut] == shim.cursor) {
		shim.next_cut++;
		pass_here(SENTINEL_BOUNDARY_CUT, shim.layer);
	}
}

void step_end(void)
{
	const struct sentinel_layout *header;

	if (shim.mode != SENTINEL_MODE_REPLAY)
		return;
	header = shim.arena->layout.header;
	if (shim.cursor != header->slot_count || shim.index + 1 != header->boundary_count) {
		pthread_mutex_lock(&shim.lock);
		diverge();
		pthread_mutex_unlock(&shim.lock);
	} else {
		publish(diverged_in_row, 0);
	}
}

static void reap_older(void)
{
	struct arena **link = &shim.older;

	while (*link) {
		struct arena *arena = *link;

		if (arena->live_tensors) {
			link = &arena->older;
			continue;
		}
		*link = arena->older;
		arena_delete(arena);
	}
}

uint64_t step_begin(void)
{
	uint32_t flags = shim.connected ? observe(flags) : 0;
	bool was_recording = shim.recording, had_epochs = shim.epochs;
	uint32_t epoch = 0;

	pthread_mutex_lock(&shim.lock);
	shim.owner = pthread_self();
	shim.owned = true;
	shim.step++;
	shim.index = 0;
	shim.cursor = 0;
	shim.next_cut = 0;
	shim.recording = flags & SENTINEL_FLAG_RECORD;
	shim.epochs = (flags & SENTINEL_FLAG_EPOCHS) && shim.epoch_fd >= 0;
	if (shim.arena)
		shim.mode = SENTINEL_MODE_REPLAY;
	else
		shim.mode = shim.recording ? SENTINEL_MODE_RECORD : SENTINEL_MODE_DORMANT;
	if (shim.arena && !shim.first_replay_step)
		shim.first_replay_step = shim.step;
	publish(mode, shim.mode);
	publish(step, shim.step);
	publish(cursor, 0);
	reap_older();
	/* The last stretch of a step with epochs ends here, whether this one has epochs or not. */
	if (shim.epochs || (had_epochs && shim.epoch_fd >= 0))
		epoch = epoch_advance(flags);
	/* A recorded step is closed by the STEP record of the next one. */
	if (was_recording || shim.recording)
		ring_put(SENTINEL_EVENT_STEP, 0, epoch, shim.step, 0, 0);
	if (shim.recording)
		ring_put_live();
	pthread_mutex_unlock(&shim.lock);
	return cross(SENTINEL_BOUNDARY_STEP, 0, epoch);
}
