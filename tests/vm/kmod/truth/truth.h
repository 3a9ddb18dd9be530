/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs programs of known page accesses and tells what they truly did beside
 * what the module says of it. A program is a text: a layout of pages (the
 * arena), then epochs of steps. In a step each thread does its own list; all
 * threads meet between steps. The controller attaches, arms, changes what is
 * watched and moves pages, before an epoch (nothing runs) or during it.
 *
 * One line is a verb and its numbers, all in pages of the arena unless said:
 *
 *     program NAME
 *     mode PRECISE REARM_US RESTLESS      how to attach; the last is for who reads the results
 *     threads COUNT
 *     region START COUNT NODE FILL HUGE   NODE -1: no memory policy. FILL 0: no page is there,
 *                                         1: all are, 2: every other one. HUGE: may be huge pages
 *     range START COUNT                   watched from the start
 *     epoch
 *     before VERB ...                     the controller's, while the target rests
 *     during VERB ...                     the controller's, while the target runs
 *     step
 *     VERB THREAD ...                     the target's; see verbs[] in program.c
 *     end
 */
#ifndef TRUTH_H
#define TRUTH_H

#include "../check/check.h"

#define ARENA_PAGES 2048u
#define EPOCHS 12u /* the first one is 1 */
#define THREADS 3u
#define REGIONS 8u
#define ITEMS 1024u
#define ARGUMENTS 4u
#define HUGE_PAGES 512u

/* What a thread did to a page in an epoch. */
#define TRUTH_READ 1u
#define TRUTH_WRITE 2u
#define TRUTH_READ_FIRST 4u
#define TRUTH_WRITE_FIRST 8u

/* What is known of a page in an epoch beside that. */
#define MARK_WATCHED 1u /* from its start */
#define MARK_PRESENT 2u /* at its start, as a page of 4 KiB */
#define MARK_ZERO 4u /* at its start: the zero page */
#define MARK_HUGE 8u /* at its start: part of a huge page */
#define MARK_MAYBE_HUGE 16u /* it lies where huge pages may come */
#define MARK_PAUSED 32u /* the controller disarmed it and armed it again meanwhile */
#define MARK_CHANGED 64u /* something that un-arms covered it */
#define MARK_DROPPED 128u /* the page was given back, or another one put in its place */
#define MARK_CAME 256u /* mremap put a page there */

struct region {
	uint32_t start, count;
	int node;
	uint32_t fill;
	bool huge;
};

struct range {
	uint32_t start, count;
	bool added;
};

enum when { STRUCTURE, THREAD, BEFORE, DURING };

struct worker {
	uint32_t thread;
	uint32_t seq; /* of its writes: each leaves another value */
	int pipe[2];
};

struct item {
	enum when when;
	const struct verb *verb;
	uint32_t thread;
	long arg[ARGUMENTS];
};

/* A verb of the target's threads has run; one of the controller's has control. */
struct verb {
	const char *name;
	enum when
		when; /* THREAD; BEFORE: the controller's, but not while the target runs; DURING: at any time */
	unsigned int args;
	void (*run)(struct worker *worker, const long *arg);
	void (*control)(const long *arg);
};

struct program {
	char name[64];
	bool precise;
	uint32_t rearm_us;
	uint32_t threads, regions, ranges, epochs, items;
	struct region region[REGIONS];
	struct range range[REGIONS];
	struct item item[ITEMS];
	uint32_t epoch_item[EPOCHS + 2]; /* where an epoch's items begin; the last one's end */
};

/* Between controller and target. */
struct shared {
	uint64_t arena;
	uint64_t wrong; /* words that did not hold what they must */
	uint32_t epoch;
	uint8_t truth[THREADS][EPOCHS + 1][ARENA_PAGES];
	uint16_t marks[EPOCHS + 1][ARENA_PAGES];
};

extern struct program program;
extern struct shared *shared;
/* The last write of each thread to each page; the target's own. */
extern uint32_t shadow[THREADS][ARENA_PAGES];

bool program_read(FILE *from);
void control_run(void);

void mark(uint32_t start, uint32_t count,
	  uint32_t bits); /* in this epoch; pages beyond the arena are left out */
struct region *region_of(uint32_t page);
void wrong_word(const char *what, uint32_t page);
/* mark() what un-arms pages of a region: where huge pages may be, all around it, too. */
void mark_changed(uint32_t start, uint32_t count, uint32_t bits);

/* The controller's verbs. */
void control_arm(const long *arg);
void control_disarm(const long *arg);
void control_rearm(const long *arg);
void control_add(const long *arg);
void control_remove(const long *arg);
void control_move(const long *arg);
void control_move_bare(const long *arg);
void control_wait(const long *arg);

/* Calls for the target. */
uint64_t target_map(uint64_t unused, uint64_t unused2);
uint64_t target_look(uint64_t epoch, uint64_t unused);
uint64_t target_run(uint64_t epoch, uint64_t unused);
uint64_t target_verify(uint64_t unused, uint64_t unused2);

/* The target's verbs: accesses ... */
void run_read(struct worker *worker, const long *arg);
void run_write(struct worker *worker, const long *arg);
void run_read_write(struct worker *worker, const long *arg);
void run_write_read(struct worker *worker, const long *arg);
void run_exchange(struct worker *worker, const long *arg);
void run_kernel_read(struct worker *worker, const long *arg);
void run_kernel_write(struct worker *worker, const long *arg);
void run_straddle(struct worker *worker, const long *arg);
/* ... and changes. */
void map_part(uint32_t start, uint32_t count); /* new pages, with the region's policy */
bool own_copies(uint32_t start, uint32_t count, uint32_t thread);
void run_drop(struct worker *worker, const long *arg);
void run_remap(struct worker *worker, const long *arg);
void run_mremap(struct worker *worker, const long *arg);
void run_protect_none(struct worker *worker, const long *arg);
void run_protect_read(struct worker *worker, const long *arg);
void run_executable(struct worker *worker, const long *arg);
void run_not_executable(struct worker *worker, const long *arg);
void run_huge(struct worker *worker, const long *arg);
void run_not_huge(struct worker *worker, const long *arg);
void run_collapse(struct worker *worker, const long *arg);
void run_cold(struct worker *worker, const long *arg);
void run_clear_refs(struct worker *worker, const long *arg);
void run_spin(struct worker *worker, const long *arg);
void run_fork(struct worker *worker, const long *arg);
void end_forks(uint32_t epoch);

#endif
