/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of an observer of page accesses, called by observers.c. */
#ifndef OBSERVERS_H
#define OBSERVERS_H

#include <stddef.h>
#include <stdint.h>

/* Flags: what an observer reports about a page in an epoch. */
#define SEEN 1 /* an access */
#define SEEN_WRITTEN 2 /* a write */

struct observer {
	const char *name;
	const char *(*missing)(void); /* why the observer is unavailable, or NULL */
	void (*begin)(char *memory);
	void (*epoch_begin)(char *memory);
	void (*epoch_end)(char *memory, uint8_t *seen); /* sets the flags of each page in `seen` */
	void (*end)(char *memory);
};

extern const struct observer observer_module, observer_module_precise, observer_module_age;
extern const struct observer observer_soft_dirty, observer_wp_async, observer_mprotect;
extern const struct observer observer_damon, observer_perf_faults, observer_perf_memory;

#endif
