/* SPDX-License-Identifier: Apache-2.0 */
/* Explicit placement: see place.c. All functions but the first need the shim's lock. */
#ifndef SENTINELD_SHIM_PLACE_H
#define SENTINELD_SHIM_PLACE_H

#include <stdint.h>

#include "heap.h"

/* The placement of the calling thread's births: enum sentinel_placement. */
uint8_t placement_of_births(void);

/* Write a PLACED record if the step is recorded. */
void placement_record(uint8_t placement, const void *address, const struct heap_birth *birth);

/* Set a block's placement. */
void placement_set(struct heap_block *block, uint8_t placement);

#endif
