// SPDX-License-Identifier: Apache-2.0
#include "read_ahead.h"

#include <string.h>

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static bool ended(const struct stream *stream, uint32_t since)
{
	return (int32_t)(stream->arrivals - since) < 0;
}

/* Whether the fault's page continues the stream, or is one that the stream has fetched already. The page
   need not be the stream's next page, because pages may be accessed out of order: by several threads of
   an operator, or by a compute kernel that works on a few rows at the same time. */
static bool continues(const struct stream *stream, const struct read_ahead_fault *fault)
{
	uint64_t page = fault->page;

	if (stream->range != fault->range)
		return false;
	if (page < stream->next)
		return page + stream->pages >= stream->next && !ended(stream, fault->since);
	return !stream->descends && page <= stream->next + READ_AHEAD_PAGES_MIN;
}

/* Whether the fault continues the stream downwards. This requires that the stream has not ended,
   and that the fault's page is below the stream's first page, in the same tensor. The distance
   between these two pages must be at most the stream's length, and at most READ_AHEAD_PAGES_MAX. */
static bool precedes(const struct stream *stream, const struct read_ahead_fault *fault)
{
	uint64_t page = fault->page;

	return stream->range == fault->range && page < stream->begin && stream->begin < fault->tensor_end &&
	       stream->begin - page <= smaller(stream->next - stream->begin, READ_AHEAD_PAGES_MAX) &&
	       !ended(stream, fault->since);
}

static unsigned find(const struct stream *streams, const struct read_ahead_fault *fault)
{
	for (unsigned at = 0; at < READ_AHEAD_STREAMS; at++)
		if (continues(&streams[at], fault))
			return at;
	for (unsigned at = 0; at < READ_AHEAD_STREAMS; at++)
		if (precedes(&streams[at], fault))
			return at;
	return READ_AHEAD_STREAMS;
}

static uint32_t larger_window(uint32_t most)
{
	return most < READ_AHEAD_PAGES_MAX ? 2 * most : most;
}

/* The window of a fault below the stream's first page. */
static struct read_ahead_window descend(struct stream *stream, const struct read_ahead_fault *fault)
{
	uint32_t distance = (uint32_t)(stream->begin - fault->page);
	uint32_t row = stream->descends ? stream->row : (uint32_t)(stream->next - stream->begin);

	stream->begin = fault->page;
	if (distance < row / 4) {
		/* The fault's page belongs to the row that the stream has fetched last: the compute
		   kernel accessed this row's pages out of order. */
		stream->pages += distance;
		if (stream->descends) /* this fault fetches up to `distance` of the owed pages */
			stream->owed -= (uint32_t)smaller(stream->owed, distance);
		return (struct read_ahead_window){.pages = distance};
	}
	stream->most = stream->descends ? larger_window(stream->most) : READ_AHEAD_PAGES_MIN;
	stream->descends = true;
	stream->row = distance;
	stream->end = fault->tensor_begin;
	stream->next = fault->page + distance;
	return (struct read_ahead_window){
		.pages = distance,
		.below = stream->most > distance ? stream->most / distance * distance : distance,
	};
}

/* The window of a fault within the stream or after its end. */
static struct read_ahead_window ascend(struct stream *stream, uint64_t page)
{
	bool shrunk = false;

	if (!stream->most) {
		stream->most = READ_AHEAD_PAGES_MIN;
	} else if (page >= stream->next) {
		stream->most = larger_window(stream->most);
	} else if (stream->most > READ_AHEAD_PAGES_MIN) {
		stream->most /= 2; /* the page was evicted before it was used */
		shrunk = true;
	}
	if (stream->descends) /* fetch no pages from `next` on: they have been accessed */
		return (struct read_ahead_window){.pages = (uint32_t)(stream->next - page)};
	return (struct read_ahead_window){
		.pages = stream->most,
		.skipped = page > stream->next ? (uint32_t)(page - stream->next) : 0,
		.shrunk = shrunk,
	};
}

struct read_ahead_window read_ahead_window(struct read_ahead *read_ahead,
					   const struct read_ahead_fault *fault)
{
	struct stream *streams = read_ahead->streams;
	struct stream found = {
		.range = fault->range,
		.begin = fault->page,
		.next = fault->page,
		.end = fault->tensor_end,
	};
	unsigned at = find(streams, fault);

	if (at < READ_AHEAD_STREAMS)
		found = streams[at];
	else
		at--; /* replace the oldest stream */
	memmove(streams + 1, streams, at * sizeof(*streams));
	found.arrivals = fault->arrivals;
	streams[0] = found;
	return fault->page < found.begin ? descend(&streams[0], fault) : ascend(&streams[0], fault->page);
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

void read_ahead_began_below(struct read_ahead *read_ahead, uint64_t begin, uint32_t owed)
{
	struct stream *stream = &read_ahead->streams[0];

	stream->begin = begin;
	stream->pages = (uint32_t)(stream->next - begin);
	stream->owed = owed;
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
	if (stream->descends)
		stream->begin -= pages;
	else
		stream->next += pages;
	stream->pages += pages;
	stream->owed -= pages;
}

uint64_t read_ahead_rest(const struct read_ahead *read_ahead, const struct paged_range *range, uint64_t page,
			 uint32_t since)
{
	const struct stream *last = NULL;
	uint64_t end = UINT64_MAX, rest = 0;

	for (unsigned at = 0; at < READ_AHEAD_STREAMS; at++) {
		const struct stream *stream = &read_ahead->streams[at];

		if (stream->range != range || ended(stream, since))
			continue;
		if (stream->descends && page >= stream->end && page < stream->next)
			rest = stream->next - page;
		if (stream->begin > page)
			end = smaller(end, stream->begin);
		else if (!last || stream->begin > last->begin)
			last = stream;
	}
	if (rest || !last || last->descends || page < last->next - last->pages || page >= last->end)
		return rest;
	return smaller(end, last->end) - page;
}

void read_ahead_forget(struct read_ahead *read_ahead, const struct paged_range *range)
{
	for (unsigned at = 0; at < READ_AHEAD_STREAMS; at++)
		if (read_ahead->streams[at].range == range)
			read_ahead->streams[at] = (struct stream){0};
}
