// SPDX-License-Identifier: Apache-2.0
/* Passes the faults of a descending stream (a sequence of accesses) to read_ahead.c, without a
   pager. */
#include "read_ahead.h"

struct rows {
	uint64_t begin;
	uint32_t owed;
};

struct rows test_row_that_begins_earlier(uint64_t owed, uint64_t page);

static struct read_ahead_window fault_at(struct read_ahead *read_ahead, struct paged_range *range,
					 uint64_t page)
{
	struct read_ahead_fault fault = {.range = range, .page = page, .tensor_end = 1000};

	return read_ahead_window(read_ahead, &fault);
}

/* Passes read_ahead.c a fault at `page`, a few pages before page `owed`, and returns the stream's fields
   after this fault. Before the fault, the stream has accessed rows of 40 pages and has fetched the pages from
   page `owed` on. The pages before page `owed` are owed to the stream: they would have been fetched, too, if
   there had been free frames. */
struct rows test_row_that_begins_earlier(uint64_t owed, uint64_t page)
{
	static struct read_ahead read_ahead;
	struct paged_range *range = (struct paged_range *)&read_ahead; /* compared, never read */

	read_ahead = (struct read_ahead){0};
	fault_at(&read_ahead, range, owed + 80);
	read_ahead_began(&read_ahead, owed + 80, 40, 1000, 0);
	fault_at(&read_ahead, range, owed + 40);
	read_ahead_began_below(&read_ahead, owed, (uint32_t)owed);
	fault_at(&read_ahead, range, page);
	return (struct rows){read_ahead.streams[0].begin, read_ahead.streams[0].owed};
}
