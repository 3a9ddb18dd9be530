// SPDX-License-Identifier: Apache-2.0
/* Begins and ends steps, and passes their boundaries: publishes the position (step and boundary),
   begins the kernel module's next epoch, wakes the daemon, and waits at barriers. */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "arenas.h"
#include "epoch.h"
#include "paging.h"

#define SPIN_NS 20000ull
/* A nap is a sleep between two checks of a barrier. It takes 1/NAP_SHARE of the time waited so far,
   within the limits NAP_NS_MIN and NAP_NS_MAX. A barrier can overrun by one nap, so naps must be
   short in a short wait. In a long wait, short naps would take CPU time that the daemon may need
   for the moves. */
#define NAP_SHARE 16
#define NAP_NS_MIN 50000ull
#define NAP_NS_MAX 10000000ull
#define TIMEOUT_NS_MAX 60000000000ull

/* Begin the kernel module's next epoch. Returns the epoch's number, or 0 if the module's session
   for this process has ended. Needs the lock, because another thread may close the descriptor. */
static uint32_t epoch_advance(uint32_t flags)
{
	struct epoch_request request = {
		.flags = flags & SENTINEL_FLAG_RESIDENCY ? EPOCH_RESIDENCY : 0,
	};

	while (ioctl(shim.epoch_fd, EPOCH_IOCTL, &request)) {
		if (errno == EINTR)
			continue;
		/* The module's session has ended, so this epoch fd will never work again. */
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
	emulation_diverged(shim.emulation);
	publish(mode, shim.mode);
	publish(diverged_steps, shim.control->diverged_steps + 1);
	publish(diverged_in_row, shim.control->diverged_in_row + 1);
	paging_pass(SCHEDULE_NOWHERE, true);
}

/* Publish the position. Returns whether wake_position has just been reached, so that the daemon has
   to be woken. The position is stored before wake_position is read, and the daemon stores
   wake_position before it reads the position. So at least one of shim and daemon sees the other's
   store. Needs the lock, so that the position never decreases when the step's owner changes. */
static bool publish_position(uint64_t position)
{
	uint64_t before = shim.control->position, wake;

	__atomic_store_n(&shim.control->position, position, __ATOMIC_SEQ_CST);
	wake = __atomic_load_n(&shim.control->wake_position, __ATOMIC_SEQ_CST);
	return before < wake && wake <= position;
}

static void wake_daemon(void)
{
	uint64_t one = 1;
	ssize_t written = write(shim.event_fd, &one, sizeof(one));

	(void)written; /* EAGAIN: the counter is full, so the daemon wakes up anyway */
}

/* The position that moves_done must reach before the process may go on from boundary shim.index;
   0: the process need not wait. Needs the lock. */
static uint64_t wait_target(void)
{
	const struct sentinel_wait *wait;
	uint64_t step = shim.step;

	if (shim.mode != SENTINEL_MODE_REPLAY)
		return 0;
	wait = &shim.arena->layout.waits[shim.index];
	if (!(wait->flags & SENTINEL_WAIT_ENABLED))
		return 0;
	if (wait->flags & SENTINEL_WAIT_STEP_BEFORE) {
		if (step == shim.first_replay_step)
			return 0; /* the previous step did not follow this layout */
		step--;
	}
	return step << 32 | wait->boundary;
}

/* Record and publish the boundary. Returns the position to wait for, or 0. Needs the lock and
   releases it. */
static uint64_t cross(enum sentinel_boundary kind, uint32_t layer, uint32_t epoch)
{
	uint64_t position = shim.step << 32 | shim.index, target;
	bool follows = shim.mode == SENTINEL_MODE_REPLAY, has_moves, wake;

	has_moves = follows && layout_has_moves(&shim.arena->layout, shim.index);
	shim.outside_pending = false;
	shim.layer = layer;
	publish(layer, layer);
	if (shim.recording)
		ring_put(SENTINEL_EVENT_BOUNDARY, (uint8_t)kind, epoch, shim.cursor, shim.index,
			 (uint16_t)layer);
	target = wait_target();
	/* Keep the lock during this call. Otherwise, if another thread called diverge() or replaced
	   the layout first, this call would overwrite the position SCHEDULE_NOWHERE that the other
	   thread has set. */
	if (follows)
		paging_pass(position, has_moves);
	wake = publish_position(position);
	pthread_mutex_unlock(&shim.lock);
	if (wake)
		wake_daemon();
	return target;
}

uint64_t boundary_pass(enum sentinel_boundary kind, uint32_t layer)
{
	uint32_t epoch = 0;

	pthread_mutex_lock(&shim.lock);
	if (!is_owner()) {
		pthread_mutex_unlock(&shim.lock);
		return 0;
	}
	shim.index++;
	if (shim.mode == SENTINEL_MODE_REPLAY && shim.index >= shim.arena->layout.header->boundary_count)
		diverge();
	if (shim.epochs)
		epoch = epoch_advance(observe(flags));
	return cross(kind, layer, epoch);
}

void boundary_leaf_ended(void)
{
	pthread_mutex_lock(&shim.lock);
	if (is_owner())
		shim.outside_pending = true;
	pthread_mutex_unlock(&shim.lock);
}

static bool moves_done(uint64_t position)
{
	return observe(moves_done) >= position;
}

/* Whether the daemon's heartbeat is fresh. The heartbeat can be a little later than `now`, because
   `now` was read first. A heartbeat that is later by more than SENTINEL_HEARTBEAT_STALE_NS is
   invalid. */
static bool daemon_alive(uint64_t now)
{
	uint64_t heartbeat = observe(heartbeat);

	return now - heartbeat <= SENTINEL_HEARTBEAT_STALE_NS ||
	       heartbeat - now <= SENTINEL_HEARTBEAT_STALE_NS;
}

/* Sleep once during a wait that has taken waited_ns so far. */
static void take_nap(uint64_t waited_ns)
{
	uint64_t nap_ns = waited_ns / NAP_SHARE;
	struct timespec nap;

	if (nap_ns < NAP_NS_MIN)
		nap_ns = NAP_NS_MIN;
	if (nap_ns > NAP_NS_MAX)
		nap_ns = NAP_NS_MAX;
	nap = (struct timespec){.tv_nsec = (long)nap_ns};
	nanosleep(&nap, NULL);
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
		if (!shim.connected)
			break;
		if (now - start >= timeout || !daemon_alive(now)) {
			publish_more(barrier_timeouts, 1);
			shim.stuck_position = position;
			break;
		}
		if (now - start >= SPIN_NS)
			take_nap(now - start);
		now = now_ns();
	}
	publish_more(barrier_wait_ns, now_ns() - start);
}

/* Do the work of stretch_begin(). Needs the lock. */
static void charge_stretch(struct emulation *emulation)
{
	uint64_t fast_bytes = 0, slow_bytes = 0;
	struct served served;

	residency_arrive();
	if (!shim.index)
		emulation_recount(emulation, shim.heap.top_page);
	served = emulation_charge(emulation, shim.index);
	if (!shim.recording || !(observe(flags) & SENTINEL_FLAG_RESIDENCY))
		return;
	emulation_resident(emulation, shim.heap.top_page, &fast_bytes, &slow_bytes);
	ring_put(SENTINEL_EVENT_SERVED, 0, fast_bytes, slow_bytes, served.accesses, (uint16_t)shim.layer);
	ring_put(SENTINEL_EVENT_SERVED_FAST, 0, served.owed_ns, (uint64_t)emulation->paid_ns, served.fast,
		 (uint16_t)shim.layer);
}

void stretch_begin(void)
{
	if (!shim.emulation)
		return;
	pthread_mutex_lock(&shim.lock);
	if (shim.emulation && shim.mode == SENTINEL_MODE_REPLAY && is_owner())
		charge_stretch(shim.emulation);
	pthread_mutex_unlock(&shim.lock);
}

uint64_t debt_due(bool all)
{
	uint64_t debt_ns;

	if (!shim.emulation)
		return 0;
	pthread_mutex_lock(&shim.lock);
	debt_ns = emulation_due(shim.emulation, all);
	pthread_mutex_unlock(&shim.lock);
	return debt_ns;
}

void debt_pay(uint64_t debt_ns)
{
	uint64_t spent_ns = delay_spend(debt_ns);

	pthread_mutex_lock(&shim.lock);
	/* If the layout was replaced during the wait, the new emulation has taken over the debt. */
	if (shim.emulation)
		emulation_paid(shim.emulation, spent_ns);
	pthread_mutex_unlock(&shim.lock);
}

/* Pass a boundary within an allocation. Does not release the GIL, because the thread does
   not always hold the GIL. */
static void pass_in_allocation(enum sentinel_boundary kind, uint32_t layer)
{
	uint64_t debt_ns = debt_due(false), target;

	if (debt_ns)
		debt_pay(debt_ns);
	target = boundary_pass(kind, layer);
	if (target)
		barrier_wait(target);
	stretch_begin();
}

void boundary_before_alloc(void)
{
	const struct layout *layout;

	if (shim.outside_pending) {
		pthread_mutex_unlock(&shim.lock);
		pass_in_allocation(SENTINEL_BOUNDARY_OUTSIDE, 0);
		pthread_mutex_lock(&shim.lock);
	}
	if (shim.mode != SENTINEL_MODE_REPLAY || !is_owner())
		return;
	layout = &shim.arena->layout;
	if (shim.next_cut < layout->header->cut_count && layout->cuts[shim.next_cut] == shim.cursor) {
		uint32_t layer = shim.layer;

		shim.next_cut++;
		pthread_mutex_unlock(&shim.lock);
		pass_in_allocation(SENTINEL_BOUNDARY_CUT, layer);
		pthread_mutex_lock(&shim.lock);
	}
}

void skip_optional(uint64_t bytes)
{
	const struct layout *layout = &shim.arena->layout;

	while (shim.cursor < layout->header->slot_count) {
		const struct sentinel_slot *slot = &layout->slots[shim.cursor];

		if (slot_fits(slot, bytes) || !(slot->flags & SENTINEL_SLOT_OPTIONAL))
			break;
		emulation_slot_sized(shim.emulation, shim.cursor, 0);
		shim.cursor++;
	}
}

void step_end(void)
{
	const struct sentinel_layout *header;

	pthread_mutex_lock(&shim.lock);
	if (shim.mode == SENTINEL_MODE_REPLAY && is_owner()) {
		skip_optional(0);
		header = shim.arena->layout.header;
		if (shim.cursor != header->slot_count || shim.index + 1 != header->boundary_count)
			diverge();
		else
			publish(diverged_in_row, 0);
	}
	pthread_mutex_unlock(&shim.lock);
}

uint64_t step_begin(void)
{
	uint32_t flags = shim.connected ? observe(flags) : 0;
	bool was_recording, had_epochs;
	uint32_t epoch = 0;

	pthread_mutex_lock(&shim.lock);
	was_recording = shim.recording;
	had_epochs = shim.epochs;
	/* The step's owner is the thread that begins the step. If the previous step had another
	   owner, ring_put() must not measure further waits for pages in that step: it would compare
	   this thread's CPU time with shim.cpu_ns, which is the former owner's. */
	if (!is_owner())
		shim.no_stalls = false;
	shim.owner = pthread_self();
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
	delete_empty_arenas();
	paging_publish();
	/* The previous step's last epoch ends here, even if the new step has no epochs. */
	if (shim.epochs || (had_epochs && shim.epoch_fd >= 0))
		epoch = epoch_advance(flags);
	/* This record also ends the previous step, so write it even if only that step is recorded. */
	if (was_recording || shim.recording)
		ring_put(SENTINEL_EVENT_STEP, 0, epoch, shim.step, 0, 0);
	stalls_begin(shim.recording && (flags & SENTINEL_FLAG_NO_STALLS));
	if (shim.recording)
		ring_put_live();
	return cross(SENTINEL_BOUNDARY_STEP, 0, epoch);
}
