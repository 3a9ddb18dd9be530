// SPDX-License-Identifier: Apache-2.0
#include "pages.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct paged_range *range_of(struct pager *pager, const void *address)
{
	struct paged_range *range = pager->ranges;

	while (range && (uintptr_t)address - (uintptr_t)range->base >= range->pages << pager->page_shift)
		range = range->next;
	return range;
}

void pager_fatal(const char *format, ...)
{
	static bool failed;
	va_list arguments;

	/* If several threads fail at the same time, only the first one prints its error. Otherwise,
	   abort() could cut another thread's error short. */
	if (__atomic_exchange_n(&failed, true, __ATOMIC_RELAXED))
		for (;;)
			pause();
	va_start(arguments, format);
	fputs("sentineld: ", stderr);
	vfprintf(stderr, format, arguments);
	fputs("; the training cannot go on\n", stderr);
	va_end(arguments);
	abort();
}
