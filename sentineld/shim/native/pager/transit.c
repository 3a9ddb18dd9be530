// SPDX-License-Identifier: Apache-2.0
/* Opens and closes transits, and finds and removes their pages. */
#include "pages.h"

bool pager_busy(const struct pager *pager)
{
	return pager->open_transits;
}

struct transit *transit_open(struct pager *pager, bool leaves, unsigned spare)
{
	if (pager->open_transits + spare >= TRANSITS_MAX)
		return NULL;
	for (unsigned i = 0; i < TRANSITS_MAX; i++) {
		struct transit *transit = &pager->transits[i];

		if (transit->used)
			continue;
		transit->used = true;
		transit->leaves = leaves;
		transit->first = transit->count = transit->done = 0;
		memset(transit->file_page, 0, sizeof(transit->file_page));
		pager->open_transits++;
		return transit;
	}
	return NULL;
}

void transit_cancel(struct transit *transit)
{
	transit->used = false;
	transit->pager->open_transits--;
}

void transit_close(struct transit *transit)
{
	struct pager *pager = transit->pager;

	transit_cancel(transit);
	if (transit->leaves)
		frames_close(&pager->frames, transit->tray);
	pages_continue(pager);
}

uint32_t transit_index(const struct transit *transit, const struct paged_range *range, uint64_t page)
{
	uint32_t i = 0;

	while (transit->of[i].range != range || transit->of[i].page != page)
		i++;
	return i;
}

void transit_cut(struct pager *pager, struct paged_range *range, uint64_t page)
{
	struct transit *transit = transit_of(pager, range, page);
	uint32_t i = transit_index(transit, range, page);

	transit->of[i].range = NULL;
	/* The transit's job still reads or writes this page of the file, and will free it. */
	if (transit->file_page[i] && range->file_page[page] == transit->file_page[i])
		range->file_page[page] = 0;
	range->transit[page] = 0;
}
