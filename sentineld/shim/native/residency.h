/* SPDX-License-Identifier: Apache-2.0 */
/* Values of the residency map's bytes, and the number of free pages on the fast node. */
#ifndef SENTINELD_SHIM_RESIDENCY_H
#define SENTINELD_SHIM_RESIDENCY_H

#include "emulate.h"

/* An entry is 0 if the page is absent, otherwise 1 + node. Every node above 0 is slow. */
#define RESIDENCY_FAST 1
#define RESIDENCY_SLOW 2

/* Number of free pages on the fast node; UINT64_MAX: unlimited. */
uint64_t residency_fast_room(const struct emulation *emulation);

/* Publish fast_own, from which the daemon computes the fast node's free pages. */
void residency_publish_fast(const struct emulation *emulation);

#endif
