/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paged tiers: keeps track of the layout's moves that are due. A move becomes due at its boundary
 * (sentinel_move.boundary). It stays due until all its pages have begun to move, or until it
 * becomes obsolete (sentinel_move.end). This file uses no lock, clock or thread.
 */
#ifndef SENTINELD_SHIM_SCHEDULE_H
#define SENTINELD_SHIM_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

/* A position that no step has. It means that the process does not follow the layout. */
#define SCHEDULE_NOWHERE UINT64_MAX

struct due_move {
	const struct sentinel_move *move;
	/* number of the move's first pages that have begun to move or need no move */
	uint64_t done;
	uint64_t deadline, end; /* boundaries, counted since the first step */
	bool late; /* whether the move is already counted in schedule.late */
};

struct due_moves {
	struct due_move *first; /* evictions in the layout's order, fetches sorted by deadline */
	uint32_t count;
};

struct schedule {
	struct sentinel_move *moves;
	uint32_t *first; /* index of each boundary's first move; the additional last entry is `count` */
	uint32_t count;
	uint32_t boundaries;
	bool follows; /* whether the process follows the layout */
	uint64_t next; /* the next boundary to be passed, counted since the first step */
	struct due_moves evict, fetch;
	/* number of fetches that moved pages after the deadline, or were incomplete at `end` */
	uint64_t late;
};

/* Copy the layout's moves. Returns false if there is no memory. */
bool schedule_init(struct schedule *schedule, const struct layout *layout);
void schedule_destroy(struct schedule *schedule);

/*
 * Report that the process is at this position: step << 32 | boundary, or SCHEDULE_NOWHERE. Adds to
 * the queues `evict` and `fetch` the moves of the boundaries that were passed since the last call.
 * Removes the moves whose `end` has been reached. SCHEDULE_NOWHERE removes all moves. The first
 * call, and the first call after SCHEDULE_NOWHERE, add the moves of the boundaries passed in the
 * current step. If the position is before the last call's position, or more than a step after it,
 * the call removes all moves and then adds those of the boundaries passed in the current step.
 */
void schedule_pass(struct schedule *schedule, uint64_t position);

/* Report on the next `pages` pages of a due move: `began` of them have begun to move, the others need
   no move. If these are the move's last pages, removes the move and returns true. */
bool schedule_done(struct schedule *schedule, struct due_moves *moves, struct due_move *due, uint64_t pages,
		   uint64_t began);

#endif
