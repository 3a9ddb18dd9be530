/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A 64-bit checksum of a page. The pager compares it with the checksum of the
 * page's copy in the file: when the page is read, to find corruption, and when
 * the page leaves memory, to skip writing an unchanged page.
 */
#ifndef SENTINELD_SHIM_CHECKSUM_H
#define SENTINELD_SHIM_CHECKSUM_H

#include <stdint.h>

/* bytes: a multiple of 64. */
uint64_t checksum(const void *data, uint64_t bytes);

#endif
