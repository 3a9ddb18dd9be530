// SPDX-License-Identifier: Apache-2.0
/* Opens and closes transits, transfers their pages, and finds or removes a page of a transit. */
#include "transit.h"

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
		transit->count = transit->done = 0;
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
		frames_free(&pager->frames, transit->home, transit->count);
	pager->proceed(pager);
}

uint32_t transit_run(const struct transit *transit, uint32_t i)
{
	uint32_t run = 1;

	while (run < REQUEST_PAGES && i + run < transit->count &&
	       transit->file_page[i + run] == transit->file_page[i] + run)
		run++;
	return run;
}

int transit_transfer(const struct transit *transit, uint32_t i, uint32_t run, bool write)
{
	unsigned page_shift = transit->pager->page_shift;
	uint64_t offset = (uint64_t)transit->file_page[i] << page_shift;
	struct iovec parts[REQUEST_PAGES];
	int count = 0;

	for (uint32_t end = i + run, some; i < end; i += some) {
		some = homes_run(transit->home + i, end - i);
		parts[count++] = (struct iovec){
			.iov_base = transit_address(transit, i),
			.iov_len = (size_t)some << page_shift,
		};
	}
	return transfer_whole(transit->pager->file, parts, count, offset, write);
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
