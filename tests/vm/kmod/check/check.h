/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the checks of the kernel module. A check acts as the controller, as the
 * daemon does in production. It forks a target, which executes one call at a time, and
 * attaches to it. Then it compares the log with the target's known accesses.
 */
#ifndef CHECK_H
#define CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include "../../../../kmod/sentinel_uapi.h"

#define PAGE 4096ul
#define ANY_NODE (-1)

/* If CONDITION is false, prints the location and a message, and fails the check. */
#define CHECK(condition, ...)                                                                                \
	do {                                                                                                 \
		if (!(condition)) {                                                                          \
			fprintf(stderr, "FAILED %s:%d: %s: ", __FILE__, __LINE__, #condition);               \
			fprintf(stderr, __VA_ARGS__);                                                        \
			fputc('\n', stderr);                                                                 \
			exit(1);                                                                             \
		}                                                                                            \
	} while (0)

/* A process that runs one function of this program at a time; forked from the controller. */
struct target {
	pid_t pid;
	int socket;
};

typedef uint64_t (*target_call_t)(uint64_t first, uint64_t second);

struct target target_start(void);
uint64_t target_call(struct target *target, target_call_t function, uint64_t first, uint64_t second);
void target_begin(struct target *target, target_call_t function, uint64_t first, uint64_t second);
uint64_t target_end(struct target *target);
void target_send_fd(struct target *target, int fd);
void target_stop(struct target *target);

/* Functions to run in a target. */
uint64_t map_pages(uint64_t pages, uint64_t populate); /* returns the address */
uint64_t bind_pages(uint64_t address, uint64_t pages_and_node); /* second argument: pages << 8 | node */
uint64_t read_pages(uint64_t address, uint64_t pages); /* returns the sum of word 0 of all pages */
uint64_t write_pages(uint64_t address, uint64_t pages); /* sets word 0 of each page to the page's number */
/* Reads the pages; returns the number of faults that the module did not resolve. */
uint64_t minor_faults(uint64_t address, uint64_t pages);
uint64_t epoch_by_fd(uint64_t flags, uint64_t unused); /* returns the epoch or -errno */
uint64_t epoch_at(uint64_t argument, uint64_t unused); /* passes `argument` to the ioctl */

/* An open device with its session. */
struct sampler {
	int fd;
	struct sentinel_log *log;
	struct sentinel_access *ring;
	uint64_t records;
};

int device_open(void);
int attach(int fd, pid_t pid, uint64_t records); /* 0 or -errno, like the int functions below */
int attach_as(int fd, struct sentinel_attach how); /* fills in uid and start_ticks */
int attach_exactly(int fd, struct sentinel_attach how);
void identify(struct sentinel_attach *how); /* fills in uid and start_ticks of how->pid */
int range_call(int fd, unsigned long command, uint64_t start, uint64_t bytes, struct sentinel_range *out);
int epoch_call(int fd, uint32_t flags, struct sentinel_epoch *out);
struct sampler sampler_open(pid_t pid, uint64_t records);
struct sampler sampler_open_as(struct sentinel_attach how);
void sampler_close(struct sampler *sampler);
void sampler_add(struct sampler *sampler, uint64_t start, uint64_t pages);
struct sentinel_range sampler_arm(struct sampler *sampler, uint64_t start, uint64_t pages);
struct sentinel_range sampler_disarm(struct sampler *sampler, uint64_t start, uint64_t pages);
uint32_t sampler_epoch(struct sampler *sampler);
void sampler_epoch_fd(struct sampler *sampler, struct target *target);
struct sentinel_stats sampler_stats(struct sampler *sampler);
/* Takes all records; the caller frees *out. */
size_t sampler_drain(struct sampler *sampler, struct sentinel_access **out);
/*
 * Takes all records; returns how many of them name `node` (ANY_NODE: any node) and have their first
 * page among the `pages` pages that begin at `address`.
 */
size_t sampler_count(struct sampler *sampler, uint64_t address, uint64_t pages, int node);
/*
 * Takes all records. found[flags] becomes the number of records with exactly these flags for the
 * `pages` pages that begin at `address`; a record of several pages counts once for each of them.
 */
void sampler_count_flags(struct sampler *sampler, uint64_t address, uint64_t pages, uint64_t found[32]);

uint32_t mix(uint32_t a, uint32_t b); /* a hash that determines the target's accesses */
void move_to(pid_t pid, uint64_t address, uint64_t pages, int node);

void check_accesses(void);
void check_births(void);
void check_zero_page(void);
void check_nodes(void);
void check_disarm(void);
void check_residency(void);
void check_arguments(void);
void check_log(void);
void check_sparse(void);
void check_huge(void);
void check_unknown(void);
void check_moved(void);
void check_writes(void);
void check_again(void);
void check_age(void);
void check_epoch_fd(void);
void check_fork(void);
void check_close(void);
void check_kill(void);
void check_end(void);
void check_stress(void);
void check_swap(void); /* requires swap */
void check_tracepoint(void);
void check_unhooked(void); /* requires that no session exists and kernel.ftrace_enabled is 0 */
void check_hooking(void); /* requires that no session exists */
void check_race(void); /* requires that no session exists */
void check_owner(void);
void check_stalled(void);
void check_busy(void);
void check_locked(void); /* requires the module fuse */

#endif
