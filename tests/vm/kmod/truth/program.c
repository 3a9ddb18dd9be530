// SPDX-License-Identifier: Apache-2.0
/* Parses programs, and contains the table of all verbs. */
#define _GNU_SOURCE
#include "truth.h"

#include <string.h>

static const struct verb verbs[] = {
	/* accesses: START COUNT STRIDE */
	{"read", THREAD, 3, run_read, NULL},
	{"write", THREAD, 3, run_write, NULL},
	{"read-write", THREAD, 3, run_read_write, NULL},
	{"write-read", THREAD, 3, run_write_read, NULL},
	{"exchange", THREAD, 3, run_exchange, NULL}, /* atomic: one access reads and writes */
	{"kernel-read", THREAD, 3, run_kernel_read, NULL}, /* write(2) from the page */
	{"kernel-write", THREAD, 3, run_kernel_write, NULL}, /* read(2) into the page */
	{"straddle", THREAD, 3, run_straddle, NULL}, /* a word that crosses into the next page */
	/* changes: START COUNT */
	{"drop", THREAD, 2, run_drop, NULL}, /* MADV_DONTNEED */
	{"remap", THREAD, 2, run_remap, NULL}, /* munmap and mmap */
	{"mremap", THREAD, 3, run_mremap, NULL}, /* to page ARG3; maps new pages in the old place */
	{"protect-none", THREAD, 2, run_protect_none, NULL}, /* PROT_NONE and back */
	{"protect-read", THREAD, 2, run_protect_read, NULL}, /* PROT_READ, a read of all pages, and back */
	{"executable", THREAD, 2, run_executable, NULL},
	{"not-executable", THREAD, 2, run_not_executable, NULL},
	{"huge", THREAD, 2, run_huge, NULL}, /* MADV_HUGEPAGE */
	{"not-huge", THREAD, 2, run_not_huge, NULL},
	{"collapse", THREAD, 2, run_collapse, NULL},
	{"cold", THREAD, 2, run_cold, NULL}, /* MADV_COLD */
	{"clear-refs", THREAD, 1, run_clear_refs, NULL}, /* ARG1: digit to write to /proc/self/clear_refs */
	{"spin", THREAD, 1, run_spin, NULL}, /* busy for ARG1 milliseconds */
	/*
	 * A child checks the pages and writes to its copies: immediately if ARG3 is 0, at the end
	 * of this epoch if ARG3 is 1, at the end of the next epoch if ARG3 is 2, and so on.
	 */
	{"fork", THREAD, 3, run_fork, NULL},
	/* verbs of the controller */
	{"arm", BEFORE, 2, NULL, control_arm},
	{"disarm", BEFORE, 2, NULL, control_disarm},
	{"add", BEFORE, 1, NULL, control_add}, /* ARG1: number of the range */
	{"remove", BEFORE, 1, NULL, control_remove},
	{"rearm", DURING, 2, NULL, control_rearm}, /* only watched pages */
	{"move", DURING, 3, NULL, control_move}, /* disarms pages, moves them to node ARG3, arms them */
	{"move-bare", DURING, 3, NULL, control_move_bare}, /* like move, but without disarming */
	{"wait", DURING, 1, NULL, control_wait}, /* microseconds */
};

struct program program;

static const struct verb *find_verb(const char *name)
{
	for (size_t i = 0; i < sizeof(verbs) / sizeof(*verbs); i++) {
		if (!strcmp(verbs[i].name, name))
			return &verbs[i];
	}
	CHECK(false, "no verb %s", name);
}

static void structure(const char *word, const long *arg, unsigned int count)
{
	if (!strcmp(word, "mode")) {
		CHECK(count == 3, "mode");
		program.precise = arg[0];
		program.rearm_us = arg[1];
	} else if (!strcmp(word, "threads")) {
		CHECK(count == 1 && arg[0] >= 1 && arg[0] <= THREADS, "threads");
		program.threads = arg[0];
	} else if (!strcmp(word, "region")) {
		CHECK(count == 5 && program.regions < REGIONS, "region");
		CHECK(arg[0] >= 0 && arg[1] > 0 && arg[0] + arg[1] <= ARENA_PAGES, "region");
		program.region[program.regions++] = (struct region){arg[0], arg[1], arg[2], arg[3], arg[4]};
	} else if (!strcmp(word, "range")) {
		CHECK(count == 2 && program.ranges < REGIONS, "range");
		CHECK(arg[0] >= 0 && arg[1] > 0 && arg[0] + arg[1] <= ARENA_PAGES, "range");
		program.range[program.ranges++] = (struct range){arg[0], arg[1], false};
	} else {
		CHECK(!strcmp(word, "epoch") && program.epochs < EPOCHS, "%s", word);
		program.epoch_item[++program.epochs] = program.items;
	}
}

static void add_item(enum when when, const char *word, const long *arg, unsigned int count)
{
	struct item *item = &program.item[program.items];
	const struct verb *verb = find_verb(word);
	bool of_thread = verb->when == THREAD;

	CHECK(program.items < ITEMS && program.epochs, "items");
	CHECK(of_thread == (when == THREAD), "%s: a verb of the %s", word,
	      of_thread ? "threads" : "controller");
	CHECK(verb->when != BEFORE || when == BEFORE, "%s while the target runs", word);
	CHECK(count == verb->args + of_thread, "%s: %u numbers", word, count);
	*item = (struct item){.when = when, .verb = verb};
	if (of_thread) {
		CHECK(arg[0] >= 0 && arg[0] < (long)program.threads, "thread %ld", arg[0]);
		item->thread = arg[0];
	}
	memcpy(item->arg, arg + of_thread, verb->args * sizeof(*arg));
	program.items++;
}

static void add_step(void)
{
	CHECK(program.items < ITEMS && program.epochs, "items");
	program.item[program.items++] = (struct item){.when = STRUCTURE};
}

static void read_line(char *line)
{
	static const char *const words[] = {"mode", "threads", "region", "range", "epoch"};
	enum when when = THREAD;
	bool of_structure = false;
	long arg[ARGUMENTS + 1] = {0};
	unsigned int count = 0;
	char *save;
	char *word = strtok_r(line, " \n", &save);
	char *number;

	if (!word || *word == '#')
		return;
	if (!strcmp(word, "before") || !strcmp(word, "during")) {
		when = *word == 'b' ? BEFORE : DURING;
		word = strtok_r(NULL, " \n", &save);
		CHECK(word, "no verb");
	}
	while ((number = strtok_r(NULL, " \n", &save))) {
		CHECK(count <= ARGUMENTS, "%s: too many numbers", word);
		arg[count++] = strtol(number, NULL, 10);
	}
	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		of_structure |= !strcmp(word, words[i]);
	if (!strcmp(word, "step"))
		add_step();
	else if (of_structure)
		structure(word, arg, count);
	else
		add_item(when, word, arg, count);
}

/* Reads the next program into `program`; returns false at the end of the input. */
bool program_read(FILE *from)
{
	static char *line;
	static size_t size;

	program = (struct program){.threads = 1};
	while (getline(&line, &size, from) > 0) {
		if (sscanf(line, "program %63s", program.name) == 1)
			continue;
		if (!strcmp(line, "end\n")) {
			program.epoch_item[program.epochs + 1] = program.items;
			return true;
		}
		read_line(line);
	}
	return false;
}
