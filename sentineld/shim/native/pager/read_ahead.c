// SPDX-License-Identifier: Apache-2.0
#include "read_ahead.h"

#include <stdbool.h>
#include <string.h>

/* Whether a fault at the page belongs to the stream. The page need not be the stream's next page:
   several threads of an operator access pages out of order, and so does a compute kernel that works
   on a few rows at once. */
static bool belongs(const struct stream *stream, const struct paged_range *range, uint64_t page)
{
	return stream->range == range && page + stream->pages >= stream->next &&
	       page <= stream->next + READ_AHEAD_PAGES_MIN;
}

struct read_ahead_window read_ahead_window(struct read_ahead *read_ahead, struct paged_range *range,
					   uint64_t page, uint64_t end, uint32_t arrivals)
{
	struct stream *streams = read_ahead->streams;
	struct stream found = {.range = range, .begin = page, .next = page, .end = end};
	unsigned at = 0;

	while (at < READ_AHEAD_STREAMS - 1 && !belongs(&streams[at], range, page))
		at++;
	if (belongs(&streams[at], range, page))
		found = streams[at];
	memmove(streams + 1, streams, at * sizeof(*streams));
	if (!found.most)
		found.most = READ_AHEAD_PAGES_MIN;
	else if (page >= found.next && found.most < READ_AHEAD_PAGES_MAX)
		found.most *= 2;
	else if (page < found.next && found.most > READ_AHEAD_PAGES_MIN)
		found.most /= 2; /* the page was evicted before it was used */
	found.arrivals = arrivals;
	streams[0] = found;
	return (struct read_ahead_window){
		.pages = found.most,
		.skipped = page > found.next ? (uint32_t)(page - found.next) : 0,
	};
}

void read_ahead_began(struct read_ahead *read_ahead, uint64_t page, uint32_t pages, uint64_t end,
		      uint32_t owed)
{
	struct stream *stream = &read_ahead->streams[0];

	if (page + pages > stream->next) {
		stream->next = page + pages;
		stream->pages = pages;
		stream->end = end;
		stream->owed = owed;
	}
}

struct stream *read_ahead_owing(struct read_ahead *read_ahead)
{
	for (unsigned at = 0; at < READ_AHEAD_STREAMS; at++)
		if (read_ahead->streams[at].owed)
			return &read_ahead->streams[at];
	return NULL;
}

void read_ahead_paid(struct stream *stream, uint32_t pages)
{
	stream->next += pages;
	stream->pages += pages;
	stream->owed -= pages;
}

uint64_t read_ahead_rest(const struct read_ahead *read_ahead, const struct paged_range *range, uint64_t page,
			 uint32_t since)
{
	const struct stream *last = NULL;
	uint64_t end = UINT64_MAX;

	for (unsigned at = 0; at < READ_AHEAD_STREAMS; at++) {
		const struct stream *stream = &read_ahead->streams[at];

		if (stream->range != range || (int32_t)(stream->arrivals - since) < 0)
			continue;
		if (stream->begin > page)
			end = stream->begin < end ? stream->begin : end;
		else if (!last || stream->begin > last->begin)
			last = stream;
	}
	if (!last || page < last->next - last->pages || page >= last->end)
		return 0;
	return (last->end < end ? last->end : end) - page;
}

void read_ahead_forget(struct read_ahead *read_ahead, const struct paged_range *range)
{
	for (unsigned at = 0; at < READ_AHEAD_STREAMS; at++)
		if (read_ahead->streams[at].range == range)
			read_ahead->streams[at] = (struct stream){0};
}
