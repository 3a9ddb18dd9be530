// SPDX-License-Identifier: Apache-2.0
/* The queue of pages that accesses wait for. */
#include "wanted.h"

#include <stdlib.h>

/* Double the queue's room, and move the queue's first entry to index 0. */
static void enlarge(struct pager *pager)
{
	struct wanted *larger = calloc(2 * pager->wanted_room, sizeof(*larger));

	if (!larger)
		pager_fatal("no memory for the queue of wanted pages");
	for (uint64_t i = 0; i < pager->wanted_count; i++)
		larger[i] = pager->wanted[(pager->wanted_first + i) % pager->wanted_room];
	free(pager->wanted);
	pager->wanted = larger;
	pager->wanted_first = 0;
	pager->wanted_room *= 2;
}

void wanted_add(struct pager *pager, struct wanted wanted)
{
	if (pager->wanted_count == pager->wanted_room)
		enlarge(pager);
	pager->wanted[(pager->wanted_first + pager->wanted_count++) % pager->wanted_room] = wanted;
}

static bool lies_in(const struct wanted *wanted, const struct paged_range *range, uint64_t page, uint64_t end)
{
	return wanted->range == range && wanted->page >= page && wanted->page + wanted->pages <= end;
}

void wanted_forget(struct pager *pager, const struct paged_range *range, uint64_t page, uint64_t end)
{
	for (unsigned i = 0; i < pager->births_count; i++)
		if (lies_in(&pager->births[i], range, page, end))
			pager->births[i].pages = 0;
	for (uint64_t i = 0; i < pager->wanted_count; i++) {
		struct wanted *wanted = &pager->wanted[(pager->wanted_first + i) % pager->wanted_room];

		if (lies_in(wanted, range, page, end))
			wanted->pages = 0;
	}
}
