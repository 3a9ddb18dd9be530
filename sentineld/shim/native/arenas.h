/* SPDX-License-Identifier: Apache-2.0 */
/* The process's arenas: that of the live layout, and those of former layouts. The functions need the
   shim's lock. */
#ifndef SENTINELD_SHIM_ARENAS_H
#define SENTINELD_SHIM_ARENAS_H

#include <stdbool.h>

#include "arena.h"

/* The arena that contains the address, or NULL. */
struct arena *arena_of(const void *address);

/* Whether the address is that of a live tensor of an arena. */
bool arena_holds(const void *address);

/* Delete those arenas of former layouts that hold no live tensor. */
void delete_empty_arenas(void);

#endif
