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

static void begin_as(char *memory, uint32_t flags)
{
	uint64_t records = 4096;

	while (records < 2 * pages)
		records *= 2;
	sampler = sampler_open_as(
		(struct sentinel_attach){.pid = getpid(), .log_records = records, .flags = flags});
	sampler_add(&sampler, (uint64_t)memory, pages);
	sampler_arm(&sampler, (uint64_t)memory, pages);
}

static void begin(char *memory)
{
	begin_as(memory, 0);
}

static void begin_precise(char *memory)
{
	begin_as(memory, SENTINEL_ATTACH_PRECISE_WRITE);
}

/* Arms what was touched again and takes the log. */
static void epoch_end(char *memory, uint8_t *seen)
{
	struct sentinel_access *records;
	size_t count;

	sampler_epoch(&sampler);
	count = sampler_drain(&sampler, &records);
	for (size_t i = 0; i < count; i++) {
		if (records[i].flags & (SENTINEL_ACCESS_UNKNOWN | SENTINEL_ACCESS_RESIDENCY))
			continue;
		seen[records[i].page - (uint64_t)memory / PAGE] |=
			records[i].flags & SENTINEL_ACCESS_WRITE ? SEEN | SEEN_WRITTEN : SEEN;
	}
	free(records);
}

static void end(char *memory)
{
	(void)memory;
	sampler_close(&sampler);
}

const struct observer observer_module = {"module", missing, begin, NULL, epoch_end, end};
const struct observer observer_module_precise = {
	"module_precise_writes", missing, begin_precise, NULL, epoch_end, end};
