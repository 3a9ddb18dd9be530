// SPDX-License-Identifier: Apache-2.0
/* The kernel module as an observer. */
#include "costs.h"
#include "observers.h"

#include <unistd.h>

static struct sampler sampler;

static const char *missing(void)
{
	return access("/dev/sentinel", R_OK | W_OK) ? "the module is not loaded" : NULL;
}

static void watch_with(char *memory, uint32_t flags)
{
	uint64_t records = 4096;

	while (records < 2 * pages)
		records *= 2;
	sampler = sampler_open_as(
		(struct sentinel_attach){.pid = getpid(), .log_records = records, .flags = flags});
	sampler_add(&sampler, (uint64_t)memory, pages);
}

static void begin(char *memory)
{
	watch_with(memory, 0);
	sampler_arm(&sampler, (uint64_t)memory, pages);
}

static void begin_precise(char *memory)
{
	watch_with(memory, SENTINEL_ATTACH_PRECISE_WRITE);
	sampler_arm(&sampler, (uint64_t)memory, pages);
}

static void drain(char *memory, uint8_t *seen)
{
	struct sentinel_access *records;
	size_t count = sampler_drain(&sampler, &records);

	for (size_t i = 0; i < count; i++) {
		uint64_t first = records[i].page - (uint64_t)memory / PAGE;

		if (records[i].flags & (SENTINEL_ACCESS_UNKNOWN | SENTINEL_ACCESS_RESIDENCY))
			continue;
		for (uint64_t page = first; page <= first + records[i].more_pages; page++)
			seen[page] |= records[i].flags & SENTINEL_ACCESS_WRITE ? SEEN | SEEN_WRITTEN : SEEN;
	}
	free(records);
}

/* Re-arms the touched pages and drains the log. */
static void epoch_end(char *memory, uint8_t *seen)
{
	sampler_epoch(&sampler);
	drain(memory, seen);
}

static void begin_age(char *memory)
{
	struct sentinel_access *records;

	watch_with(memory, 0);
	sampler_age(&sampler, (uint64_t)memory, pages);
	sampler_drain(&sampler, &records);
	free(records);
}

static void epoch_end_age(char *memory, uint8_t *seen)
{
	sampler_age(&sampler, (uint64_t)memory, pages);
	drain(memory, seen);
}

static void end(char *memory)
{
	(void)memory;
	sampler_close(&sampler);
}

const struct observer observer_module = {
	"module", missing, begin, NULL, epoch_end, end,
};
const struct observer observer_module_precise = {
	"module_precise_writes", missing, begin_precise, NULL, epoch_end, end,
};
const struct observer observer_module_age = {
	"module_accessed_bits", missing, begin_age, NULL, epoch_end_age, end,
};
