// SPDX-License-Identifier: Apache-2.0
/* sentinel:page_access fires once per access record. */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define PAGES 300ul
#define TRACING "/sys/kernel/tracing/"

static void write_file(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY | O_TRUNC);

	CHECK(fd >= 0 && write(fd, value, strlen(value)) == (ssize_t)strlen(value), "%s: %s", path,
	      strerror(errno));
	close(fd);
}

struct events {
	uint64_t all, reads, writes, births;
};

static struct events read_trace(pid_t tgid, uint64_t address)
{
	FILE *trace = fopen(TRACING "trace", "r");
	struct events events = {0};
	char line[512];

	CHECK(trace, "%s", strerror(errno));
	while (fgets(line, sizeof(line), trace)) {
		char *event = strstr(line, "page_access: ");
		unsigned int epoch, node, write, birth;
		uint64_t where;
		int pid;

		if (!event)
			continue;
		CHECK(sscanf(event, "page_access: tgid=%d address=0x%lx epoch=%u node=%u write=%u birth=%u",
			     &pid, &where, &epoch, &node, &write, &birth) == 6,
		      "%s", line);
		CHECK(pid == tgid && where - address < 2 * PAGES * PAGE, "%s", line);
		CHECK(epoch == 1 && node < 2, "%s", line);
		events.all++;
		events.births += birth;
		events.writes += write && !birth;
		events.reads += !write && !birth;
	}
	fclose(trace);
	return events;
}

void check_tracepoint(void)
{
	struct target target = target_start();
	uint64_t address = target_call(&target, map_pages, 2 * PAGES, 0);
	struct sampler sampler = sampler_open(target.pid, 4096);
	struct events events;

	target_call(&target, write_pages, address, PAGES);
	sampler_add(&sampler, address, 2 * PAGES);
	sampler_arm(&sampler, address, 2 * PAGES);
	write_file(TRACING "trace", "");
	write_file(TRACING "events/sentinel/page_access/enable", "1");
	target_call(&target, read_pages, address, 100);
	target_call(&target, write_pages, address, PAGES + 50);
	sampler_epoch(&sampler);
	write_file(TRACING "events/sentinel/page_access/enable", "0");
	target_call(&target, read_pages, address, PAGES);
	events = read_trace(target.pid, address);
	CHECK(events.all == PAGES + 50, "%lu events", events.all);
	CHECK(events.reads == 100 && events.writes == 200 && events.births == 50, "%lu %lu %lu", events.reads,
	      events.writes, events.births);
	CHECK(sampler_count(&sampler, address, 2 * PAGES, ANY_NODE) == 2 * PAGES + 50, "records");
	sampler_close(&sampler);
	target_stop(&target);
}
