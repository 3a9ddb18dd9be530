/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A 64-bit checksum of a page. The pager compares this checksum with that of
 * the page's copy in the file. When the page is read, the comparison finds
 * corruption. When the page is evicted, the comparison tells whether the page
 * has changed and has to be written.
 */
#ifndef SENTINELD_SHIM_CHECKSUM_H
#define SENTINELD_SHIM_CHECKSUM_H

#include <stdint.h>

/* The checksum of `bytes` bytes of data. bytes: a multiple of 256. */
uint64_t checksum(const void *data, uint64_t bytes);

/* The same function as checksum(), but without vector instructions. */
uint64_t checksum_portable(const void *data, uint64_t bytes);

#endif
