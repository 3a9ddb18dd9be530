// SPDX-License-Identifier: Apache-2.0
/* The controller's functions: they open the device, run its session and read its log. */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MPOL_MF_MOVE 2

int device_open(void)
{
	int fd = open("/dev/sentinel", O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0, "/dev/sentinel: %s", strerror(errno));
	return fd;
}

int attach(int fd, pid_t pid, uint64_t records)
{
	return attach_as(fd, (struct sentinel_attach){.pid = pid, .log_records = records});
}

int attach_exactly(int fd, struct sentinel_attach how)
{
	return ioctl(fd, SENTINEL_IOC_ATTACH, &how) ? -errno : 0;
}

/*
 * Fills in uid and start_ticks of the process how->pid. If this process does not exist, changes
 * nothing.
 */
void identify(struct sentinel_attach *how)
{
	char path[64], line[1024], *field;
	struct stat owner;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", how->pid);
	file = fopen(path, "r");
	if (!file)
		return;
	if (!fstat(fileno(file), &owner) && fgets(line, sizeof(line), file)) {
		how->uid = owner.st_uid;
		field = strrchr(line, ')') + 2; /* field 3 */
		for (int i = 3; i < 22; i++)
			field = strchr(field, ' ') + 1;
		how->start_ticks = strtoull(field, NULL, 10);
	}
	fclose(file);
}

int attach_as(int fd, struct sentinel_attach how)
{
	identify(&how);
	return attach_exactly(fd, how);
}

int range_call(int fd, unsigned long command, uint64_t start, uint64_t bytes, struct sentinel_range *out)
{
	struct sentinel_range range = {.start = start, .bytes = bytes, .pages_done = 77};
	int ret = ioctl(fd, command, &range) ? -errno : 0;

	if (out)
		*out = range;
	return ret;
}

int epoch_call(int fd, uint32_t flags, struct sentinel_epoch *out)
{
	struct sentinel_epoch epoch = {.flags = flags};
	int ret = ioctl(fd, SENTINEL_IOC_EPOCH, &epoch) ? -errno : 0;

	if (out)
		*out = epoch;
	return ret;
}

struct sampler sampler_open(pid_t pid, uint64_t records)
{
	return sampler_open_as((struct sentinel_attach){.pid = pid, .log_records = records});
}

struct sampler sampler_open_as(struct sentinel_attach how)
{
	struct sampler sampler = {.fd = device_open(), .records = how.log_records};
	uint64_t records = how.log_records;
	int ret = attach_as(sampler.fd, how);

	CHECK(!ret, "ATTACH: %s", strerror(-ret));
	sampler.log = mmap(NULL, SENTINEL_LOG_OFFSET + records * sizeof(*sampler.ring),
			   PROT_READ | PROT_WRITE, MAP_SHARED, sampler.fd, 0);
	CHECK(sampler.log != MAP_FAILED, "mmap: %s", strerror(errno));
	sampler.ring = (void *)sampler.log + SENTINEL_LOG_OFFSET;
	CHECK(sampler.log->records == records, "%llu", sampler.log->records);
	CHECK(sampler.log->record_bytes == sizeof(*sampler.ring), "%u", sampler.log->record_bytes);
	CHECK(sampler.log->epoch == 1, "%u", sampler.log->epoch);
	return sampler;
}

void sampler_close(struct sampler *sampler)
{
	munmap(sampler->log, SENTINEL_LOG_OFFSET + sampler->records * sizeof(*sampler->ring));
	close(sampler->fd);
}

static struct sentinel_range checked_range_call(struct sampler *sampler, unsigned long command,
						uint64_t start, uint64_t pages)
{
	struct sentinel_range range;
	int ret = range_call(sampler->fd, command, start, pages * PAGE, &range);

	CHECK(!ret, "ioctl %lu: %s", command & 255, strerror(-ret));
	return range;
}

void sampler_add(struct sampler *sampler, uint64_t start, uint64_t pages)
{
	checked_range_call(sampler, SENTINEL_IOC_ADD_RANGE, start, pages);
}

struct sentinel_range sampler_arm(struct sampler *sampler, uint64_t start, uint64_t pages)
{
	return checked_range_call(sampler, SENTINEL_IOC_ARM, start, pages);
}

struct sentinel_range sampler_disarm(struct sampler *sampler, uint64_t start, uint64_t pages)
{
	return checked_range_call(sampler, SENTINEL_IOC_DISARM, start, pages);
}

uint32_t sampler_epoch(struct sampler *sampler)
{
	struct sentinel_epoch epoch;
	int ret = epoch_call(sampler->fd, 0, &epoch);

	CHECK(!ret, "EPOCH: %s", strerror(-ret));
	CHECK(epoch.epoch == sampler->log->epoch, "%u, log %u", epoch.epoch, sampler->log->epoch);
	return epoch.epoch;
}

void sampler_epoch_fd(struct sampler *sampler, struct target *target)
{
	struct sentinel_epoch_fd out;

	CHECK(!ioctl(sampler->fd, SENTINEL_IOC_EPOCH_FD, &out), "%s", strerror(errno));
	CHECK(fcntl(out.fd, F_GETFD) == FD_CLOEXEC, "the epoch fd is not O_CLOEXEC");
	target_send_fd(target, out.fd);
	close(out.fd);
}

struct sentinel_stats sampler_stats(struct sampler *sampler)
{
	struct sentinel_stats stats;

	CHECK(!ioctl(sampler->fd, SENTINEL_IOC_STATS, &stats), "%s", strerror(errno));
	return stats;
}

size_t sampler_drain(struct sampler *sampler, struct sentinel_access **out)
{
	uint64_t head = __atomic_load_n(&sampler->log->head, __ATOMIC_ACQUIRE);
	uint64_t tail = sampler->log->tail;
	size_t count = head - tail;

	CHECK(count <= sampler->records, "%zu records in a log of %lu", count, sampler->records);
	*out = malloc((count + 1) * sizeof(**out));
	for (size_t i = 0; i < count; i++)
		(*out)[i] = sampler->ring[(tail + i) & (sampler->records - 1)];
	__atomic_store_n(&sampler->log->tail, head, __ATOMIC_RELEASE);
	return count;
}

size_t sampler_count(struct sampler *sampler, uint64_t address, uint64_t pages, int node)
{
	struct sentinel_access *records;
	size_t total = sampler_drain(sampler, &records);
	size_t count = 0;

	for (size_t i = 0; i < total; i++) {
		if (records[i].page - address / PAGE < pages && (node == ANY_NODE || records[i].node == node))
			count++;
	}
	free(records);
	return count;
}

void sampler_count_flags(struct sampler *sampler, uint64_t address, uint64_t pages, uint64_t found[32])
{
	struct sentinel_access *records;
	size_t total = sampler_drain(sampler, &records);

	memset(found, 0, 32 * sizeof(*found));
	for (size_t i = 0; i < total; i++) {
		for (uint64_t page = records[i].page; page <= records[i].page + records[i].more_pages;
		     page++) {
			if (page - address / PAGE < pages)
				found[records[i].flags & 31]++;
		}
	}
	free(records);
}

uint32_t mix(uint32_t a, uint32_t b)
{
	uint32_t hash = a * 0x9e3779b1u ^ (b + 0x7f4a7c15u) * 0x85ebca6bu;

	hash = (hash ^ hash >> 15) * 0xc2b2ae35u;
	hash = (hash ^ hash >> 13) * 0x27d4eb2fu;
	return hash ^ hash >> 16;
}

void move_to(pid_t pid, uint64_t address, uint64_t pages, int node)
{
	void **page = calloc(pages, sizeof(*page));
	int *to = calloc(pages, sizeof(*to));
	int *status = calloc(pages, sizeof(*status));
	long ret;

	for (uint64_t i = 0; i < pages; i++) {
		page[i] = (void *)(address + i * PAGE);
		to[i] = node;
	}
	ret = syscall(SYS_move_pages, pid, pages, page, to, status, MPOL_MF_MOVE);
	CHECK(ret == 0, "move_pages: %ld, %s", ret, strerror(errno));
	free(page);
	free(to);
	free(status);
}
