/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SENTINELD_SHIM_WHOLE_PAGES_H
#define SENTINELD_SHIM_WHOLE_PAGES_H

#include <stdint.h>

/* Number of pages that hold `bytes`. */
static inline uint64_t whole_pages(uint64_t bytes, unsigned page_shift)
{
	return (bytes + (1ull << page_shift) - 1) >> page_shift;
}

#endif
