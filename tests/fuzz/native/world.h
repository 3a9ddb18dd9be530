/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process around the C object, for one input at a time: a fresh start, a
 * clock that only we move, two threads that take turns, tensors whose contents
 * are checked. Everything is done through the calls that torch, Python and the
 * kernel make; what the object says of itself is looked at, never changed.
 *
 * Not covered: torch's own libc10 (c10.c stands for it), Python's calls (four
 * functions in world.c), real concurrency of threads, mappings that the kernel
 * refuses, the module's epoch ioctl (no fd given here understands it).
 */
#ifndef SENTINELD_FUZZ_WORLD_H
#define SENTINELD_FUZZ_WORLD_H

#include "shim.h"

#define PAGE_BYTES 4096u
#define HEAP_PAGES 256u
#define RING_RECORDS 32u
#define NAP_NS_MAX 250000000ull /* how far one nanosleep may move the clock */
#define TENSORS_MAX 64u

/* calls of control.c */
extern int sentinel_start(uint64_t heap_bytes, uint64_t request_bytes_max, uint64_t ring_records);
extern void sentinel_enable(int on);
extern void *sentinel_control_words(void);
extern void sentinel_connected(int connected);
extern void sentinel_epoch_fd(int fd);
extern const char *sentinel_layout(int fd);
extern void sentinel_detach(void);

/* The input, taken from its front; zeros once it is used up. */
struct input {
	const uint8_t *at;
	const uint8_t *end;
};

extern struct input input;

bool input_left(void);
uint8_t take8(void);
uint16_t take16(void);
uint64_t take64(void);

/* A fresh process: heap and ring, enabled and connected. daemon_turn: called while the object sleeps. */
void world_begin(const uint8_t *data, size_t size, void (*daemon_turn)(void));

/* Check and free all tensors, and leave nothing behind. */
void world_end(void);

/* fork(): go on as the child. */
void world_fork(void);

/* Have the other thread call it, and wait. */
void world_elsewhere(void (*function)(void));

uint64_t world_now_ns(void);

/* The built-in functions that hooks call. */
enum hook { HOOK_FORWARD, HOOK_FORWARD_END, HOOK_BACKWARD, HOOK_OPTIMIZER, HOOK_STEP_END, HOOK_STEP_BEGIN };

void world_hook(enum hook hook, uint32_t layer);

/* A tensor of so many bytes, filled and remembered; without room in the table none. */
void tensor_new(uint64_t bytes);

/* The tensor with this number, modulo those there are: checked, then freed. */
void tensor_free(unsigned number);

unsigned tensor_count(void);

/* A memfd with these contents: one and the same, overwritten by the next call. */
int file_of(const void *data, size_t size);

#endif
