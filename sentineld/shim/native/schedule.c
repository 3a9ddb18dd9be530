// SPDX-License-Identifier: Apache-2.0
#include "schedule.h"

#include <stdlib.h>
#include <string.h>

bool schedule_init(struct schedule *schedule, const struct layout *layout)
{
	uint32_t count = layout->header->move_count, boundaries = layout->header->boundary_count, row = 0;

	*schedule = (struct schedule){.count = count, .boundaries = boundaries};
	if (!count)
		return true;
	schedule->moves = malloc(count * sizeof(*schedule->moves));
	schedule->first = malloc((boundaries + 1ull) * sizeof(*schedule->first));
	/* When a move becomes due in the next step, its entry of this step is obsolete already. So
	   a queue never holds a move twice, and has at most `count` entries. */
	schedule->evict.first = malloc(count * sizeof(*schedule->evict.first));
	schedule->fetch.first = malloc(count * sizeof(*schedule->fetch.first));
	if (!schedule->moves || !schedule->first || !schedule->evict.first || !schedule->fetch.first) {
		schedule_destroy(schedule);
		return false;
	}
	memcpy(schedule->moves, layout->moves, count * sizeof(*schedule->moves));
	for (uint32_t boundary = 0; boundary <= boundaries; boundary++) {
		while (row < count && schedule->moves[row].boundary < boundary)
			row++;
		schedule->first[boundary] = row;
	}
	return true;
}

void schedule_destroy(struct schedule *schedule)
{
	free(schedule->moves);
	free(schedule->first);
	free(schedule->evict.first);
	free(schedule->fetch.first);
	*schedule = (struct schedule){0};
}

static void remove_at(struct due_moves *moves, uint32_t at)
{
	moves->count--;
	memmove(moves->first + at, moves->first + at + 1, (moves->count - at) * sizeof(*moves->first));
}

static void add(struct schedule *schedule, const struct sentinel_move *move)
{
	struct due_move due = {
		.move = move,
		.deadline = schedule->next + move->deadline,
		.end = schedule->next + move->end,
	};
	struct due_moves *moves = &schedule->evict;
	uint32_t at;

	if (move->flags & SENTINEL_MOVE_EVICT) {
		moves->first[moves->count++] = due;
		return;
	}
	moves = &schedule->fetch;
	for (at = moves->count; at && moves->first[at - 1].deadline > due.deadline; at--)
		moves->first[at] = moves->first[at - 1];
	moves->first[at] = due;
	moves->count++;
}

/* Remove the moves that are obsolete at the boundary. Returns how many of the removed moves have not
   been counted as late yet. */
static uint32_t expire(struct due_moves *moves, uint64_t boundary)
{
	uint32_t kept = 0, found = 0;

	for (uint32_t at = 0; at < moves->count; at++)
		if (moves->first[at].end > boundary)
			moves->first[kept++] = moves->first[at];
		else
			found += !moves->first[at].late;
	moves->count = kept;
	return found;
}

void schedule_pass(struct schedule *schedule, uint64_t position)
{
	uint64_t boundary = position & UINT32_MAX, now;
	bool jumped;

	if (!schedule->count)
		return;
	if (position == SCHEDULE_NOWHERE || boundary >= schedule->boundaries) {
		schedule->evict.count = schedule->fetch.count = 0;
		schedule->follows = false;
		return;
	}
	now = (position >> 32) * schedule->boundaries + boundary;
	jumped = now + 1 < schedule->next || now >= schedule->next + schedule->boundaries;
	if (!schedule->follows || jumped) {
		schedule->evict.count = schedule->fetch.count = 0;
		schedule->follows = true;
		/* A process begins to follow a layout only at the beginning of a step. So it has
		   followed the layout at this step's earlier boundaries, too: add their moves. */
		schedule->next = now - boundary;
	}
	for (; schedule->next <= now; schedule->next++) {
		uint32_t at = (uint32_t)(schedule->next % schedule->boundaries);

		expire(&schedule->evict, schedule->next);
		schedule->late += expire(&schedule->fetch, schedule->next);
		for (uint32_t row = schedule->first[at]; row < schedule->first[at + 1]; row++)
			add(schedule, &schedule->moves[row]);
	}
}

bool schedule_done(struct schedule *schedule, struct due_moves *moves, struct due_move *due, uint64_t pages,
		   uint64_t began)
{
	due->done += pages;
	if (began && !due->late && moves == &schedule->fetch && schedule->next > due->deadline) {
		due->late = true;
		schedule->late++;
	}
	if (due->done < due->move->pages)
		return false;
	remove_at(moves, (uint32_t)(due - moves->first));
	return true;
}
