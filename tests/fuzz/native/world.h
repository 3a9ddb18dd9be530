/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated process around the shim, started anew for each input. It has its
 * own clock, two threads that run in turn, and tensors whose contents are checked.
 * It drives the shim only through the functions that torch, Python and libc (at a
 * fork) call. Between world_begin() and world_end(), it reads the shim's state, but
 * does not write it.
 *
 * Not covered: torch's own libc10 (c10.c replaces it), the Python API (four
 * functions in world.c replace it), concurrent threads (tests/sanitize has them),
 * mappings that the kernel refuses, and the module's epoch ioctl (every fd here
 * rejects it).
 */
#ifndef SENTINELD_FUZZ_WORLD_H
#define SENTINELD_FUZZ_WORLD_H

#include "shim.h"

#define PAGE_BYTES 4096u
#define HEAP_PAGES 256u
#define RING_RECORDS 32u
#define NAP_NS_MAX 250000000ull /* time by which one nanosleep() advances the clock */
#define TENSORS_MAX 64u

/* functions of control.c */
extern int sentinel_start(uint64_t heap_bytes, uint64_t request_bytes_max, uint64_t ring_records);
extern void sentinel_enable(int on);
extern void *sentinel_control_words(void);
extern void sentinel_connected(int connected);
extern void sentinel_epoch_fd(int fd);
extern const char *sentinel_layout(int fd);
extern void sentinel_detach(void);

/* The input, read from its front; after its end, zeros are read. */
struct input {
	const uint8_t *at;
	const uint8_t *end;
};

extern struct input input;

bool input_left(void);
uint8_t take8(void);
uint16_t take16(void);
uint64_t take64(void);

/*
 * Start a process with an enabled, connected shim. daemon_acts: called while the process sleeps,
 * or NULL.
 */
void world_begin(const uint8_t *data, size_t size, void (*daemon_acts)(void));

/* Check and free all tensors and all resources of the process. */
void world_end(void);

/* Simulate fork() and continue as the child. */
void world_fork(void);

/* Call the function on the other thread and wait for it. */
void world_on_other_thread(void (*function)(void));

uint64_t world_now_ns(void);

/* The functions that hooks call; the value is the function's index in sentinel_methods(). */
enum hook { HOOK_FORWARD, HOOK_FORWARD_END, HOOK_BACKWARD, HOOK_OPTIMIZER, HOOK_STEP_END, HOOK_STEP_BEGIN };

void world_hook(enum hook hook, uint32_t layer);

/* Allocate and mark a tensor. No-op if the table is full or if `bytes` is less than 8. */
void tensor_new(uint64_t bytes);

/* Check and free the tensor with this number, modulo the number of tensors. */
void tensor_free(unsigned number);

unsigned tensor_count(void);

/* A memfd with these contents; the next call overwrites and returns the same memfd. */
int file_of(const void *data, size_t size);

#endif
