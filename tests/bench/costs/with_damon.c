// SPDX-License-Identifier: Apache-2.0
/*
 * DAMON as an observer of this process, through sysfs, with its documented
 * defaults: a sampling interval of 5 ms, an aggregation interval of 100 ms, 10 to
 * 1000 regions. DAMON reports regions instead of pages. Therefore, this observer
 * reports no pages, and only its cost is measured.
 */
#include "costs.h"
#include "observers.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define ADMIN "/sys/kernel/mm/damon/admin/kdamonds"

static void set(const char *name, const char *value)
{
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), ADMIN "/%s", name);
	file = fopen(path, "w");
	CHECK(file, "%s: %s", path, strerror(errno));
	CHECK(fputs(value, file) >= 0 && !fclose(file), "%s = %s: %s", path, value, strerror(errno));
}

static const char *missing(void)
{
	return access(ADMIN, W_OK) ? "the kernel is built without DAMON" : NULL;
}

static void begin(char *memory)
{
	char pid[16];

	(void)memory;
	snprintf(pid, sizeof(pid), "%d", getpid());
	set("nr_kdamonds", "1");
	set("0/contexts/nr_contexts", "1");
	set("0/contexts/0/operations", "vaddr");
	set("0/contexts/0/targets/nr_targets", "1");
	set("0/contexts/0/targets/0/pid_target", pid);
	set("0/state", "on");
}

static void end(char *memory)
{
	(void)memory;
	set("0/state", "off");
	set("nr_kdamonds", "0");
}

const struct observer observer_damon = {"damon", missing, begin, NULL, NULL, end};
