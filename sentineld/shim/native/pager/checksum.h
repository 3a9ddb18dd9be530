/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A 64-bit checksum of a page. The pager compares it with the checksum of the
 * page's copy in the file: when the page is read, to find corruption, and when
 * the page is evicted, to skip writing an unchanged page.
 */
#ifndef SENTINELD_SHIM_CHECKSUM_H
#define SENTINELD_SHIM_CHECKSUM_H

#include <stdint.h>

/* bytes: a multiple of 256. */
uint64_t checksum(const void *data, uint64_t bytes);

/* The same function without vector instructions. */
uint64_t checksum_portable(const void *data, uint64_t bytes);

#endif
