/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs programs with known page accesses, and prints the true accesses and the
 * module's records. A program is a text: the layout of an arena (the target's
 * memory), then epochs, which consist of steps. In a step each thread executes
 * its list of verbs; a barrier separates steps. Before an epoch, while no thread
 * runs, the controller can change which pages are watched. Before and during an
 * epoch, the controller can also move pages and arm watched pages again.
 *
 * A line is a verb and numbers, which are in pages of the arena unless noted otherwise:
 *
 *     program NAME
 *     mode PRECISE REARM_US BALANCING     how to attach; BALANCING is only for judge.py
 *     threads COUNT
 *     region START COUNT NODE FILL HUGE   NODE -1: no memory policy. FILL 0: no page is present,
 *                                         N: every Nth page is. HUGE 1: verbs can make pages
 *                                         huge; if FILL is 3, pages can also be huge
 *                                         before the first epoch
 *     range START COUNT                   watched from the first epoch
 *     epoch
 *     before VERB ...                     by the controller, while the threads do not run
 *     during VERB ...                     by the controller, while the threads run
 *     step
 *     VERB THREAD ...                     by a thread of the target; see verbs[] in program.c
 *     end
 */
#ifndef TRUTH_H
#define TRUTH_H

#include "../check/check.h"

#define ARENA_PAGES 2048u
#define EPOCHS 12u /* numbered from 1 */
#define THREADS 3u
#define REGIONS 8u
#define ITEMS 1024u
#define ARGUMENTS 4u
#define HUGE_PAGES 512u

/* The accesses of a thread to a page in an epoch. */
#define TRUTH_READ 1u
#define TRUTH_WRITE 2u
#define TRUTH_READ_FIRST 4u
#define TRUTH_WRITE_FIRST 8u

/* The state of a page in an epoch. */
#define MARK_WATCHED 1u /* watched since the epoch's start */
#define MARK_PRESENT 2u /* at the epoch's start: present as a page of 4 KiB */
#define MARK_ZERO 4u /* at the epoch's start: the zero page */
#define MARK_HUGE 8u /* at the epoch's start: part of a huge page */
#define MARK_MAYBE_HUGE 16u /* the page is in a region that may have huge pages */
#define MARK_PAUSED 32u /* the controller disarmed and re-armed the page during the epoch */
#define MARK_CHANGED 64u /* the page was in the range of an operation that unarms pages */
#define MARK_DROPPED 128u /* the page was dropped or replaced */
#define MARK_MOVED_IN 256u /* mremap moved a page here */

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
	uint32_t seq; /* number of the last write; makes the written values distinct */
	int pipe[2];
};

struct item {
	enum when when;
	const struct verb *verb;
	uint32_t thread;
	long arg[ARGUMENTS];
};

/* A verb for threads has the function `run`; a verb for the controller has `control`. */
struct verb {
	const char *name;
	/* THREAD; for the controller's verbs, BEFORE (no thread runs) or DURING (at any time) */
	enum when when;
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
	uint32_t epoch_item[EPOCHS + 2]; /* first item of each epoch; after the last epoch: `items` */
};

/* Memory shared by controller and target. */
struct shared {
	uint64_t arena;
	uint64_t wrong; /* number of words with a wrong value */
	uint32_t epoch;
	uint8_t truth[THREADS][EPOCHS + 1][ARENA_PAGES];
	uint16_t marks[EPOCHS + 1][ARENA_PAGES];
};

extern struct program program;
extern struct shared *shared;
/* worker.seq of the last write of each thread to each page; 0: none. Private to the target. */
extern uint32_t shadow[THREADS][ARENA_PAGES];

bool program_read(FILE *from);
void control_run(void);

/* Sets bits in this epoch's marks; ignores pages beyond the arena. */
void mark(uint32_t start, uint32_t count, uint32_t bits);
struct region *region_of(uint32_t page);
void wrong_word(const char *what, uint32_t page);
/* Like mark(). In a region that may have huge pages, also sets MARK_CHANGED on all pages of each
   2 MiB area that overlaps the range. */
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

/* Functions that the target runs for the controller. */
uint64_t target_map(uint64_t unused, uint64_t unused2);
uint64_t target_snapshot(uint64_t epoch, uint64_t unused);
uint64_t target_run(uint64_t epoch, uint64_t unused);
uint64_t target_verify(uint64_t unused, uint64_t unused2);

/* The target's verbs that access pages. */
void run_read(struct worker *worker, const long *arg);
void run_write(struct worker *worker, const long *arg);
void run_read_write(struct worker *worker, const long *arg);
void run_write_read(struct worker *worker, const long *arg);
void run_exchange(struct worker *worker, const long *arg);
void run_kernel_read(struct worker *worker, const long *arg);
void run_kernel_write(struct worker *worker, const long *arg);
void run_straddle(struct worker *worker, const long *arg);
/* The target's verbs that change pages. */
void map_part(uint32_t start, uint32_t count); /* maps new pages with the region's policy */
bool check_copies(uint32_t start, uint32_t count, uint32_t thread);
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
