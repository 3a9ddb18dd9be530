// SPDX-License-Identifier: Apache-2.0
/* If anything but the module unarms a page, the log reports the page as unknown. */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 1000ul
#define PART 100ul
#define UNKNOWN SENTINEL_ACCESS_UNKNOWN

static uint64_t protect_and_back(uint64_t address, uint64_t pages)
{
	CHECK(!mprotect((void *)address, pages * PAGE, PROT_READ), "%s", strerror(errno));
	CHECK(!mprotect((void *)address, pages * PAGE, PROT_READ | PROT_WRITE), "%s", strerror(errno));
	return 0;
}

static uint64_t protect_to_none_and_back(uint64_t address, uint64_t pages)
{
	CHECK(!mprotect((void *)address, pages * PAGE, PROT_NONE), "%s", strerror(errno));
	CHECK(!mprotect((void *)address, pages * PAGE, PROT_READ | PROT_WRITE), "%s", strerror(errno));
	return 0;
}

static uint64_t drop(uint64_t address, uint64_t pages)
{
	CHECK(!madvise((void *)address, pages * PAGE, MADV_DONTNEED), "%s", strerror(errno));
	return 0;
}

static uint64_t drop_twice(uint64_t address, uint64_t pages)
{
	return drop(address, pages) + drop(address, pages);
}

/* Reads the pages between the mprotect() and the drop: an access that the module cannot observe. */
static uint64_t protect_read_and_drop(uint64_t address, uint64_t pages)
{
	protect_and_back(address, pages);
	read_pages(address, pages);
	return drop(address, pages);
}

static uint64_t fork_and_wait(uint64_t address, uint64_t pages)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(read_pages(address, pages) == 0);
	CHECK(pid > 0 && waitpid(pid, NULL, 0) == pid, "%s", strerror(errno));
	return 0;
}

/* Replaces armed pages with pages from outside all watched ranges. */
static uint64_t mremap_in(uint64_t address, uint64_t pages)
{
	char *from = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(from != MAP_FAILED, "%s", strerror(errno));
	write_pages((uint64_t)from, pages);
	CHECK(mremap(from, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)address) ==
		      (void *)address,
	      "%s", strerror(errno));
	return 0;
}

/* Replaces pages with file pages, which cannot be armed. */
static uint64_t map_file(uint64_t address, uint64_t pages)
{
	int fd = memfd_create("check", MFD_CLOEXEC);

	CHECK(fd >= 0 && !ftruncate(fd, pages * PAGE), "%s", strerror(errno));
	CHECK(mmap((void *)address, pages * PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) ==
		      (void *)address,
	      "%s", strerror(errno));
	close(fd);
	return 0;
}

#define FOLIO 16ul /* number of pages in a large folio of 64 KiB */
#define FOLIO_SETTING "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled"

static uint64_t permit_large_folios(uint64_t address, uint64_t pages)
{
	CHECK(!madvise((void *)address, pages * PAGE, MADV_HUGEPAGE), "%s", strerror(errno));
	return 0;
}

/* Writes `value` to FOLIO_SETTING and returns the old value in `before`; false if there is no such file. */
static bool set_large_folios(const char *value, char before[16])
{
	char text[64] = "";
	int fd = open(FOLIO_SETTING, O_RDWR | O_CLOEXEC);
	char *chosen;

	if (fd < 0)
		return false;
	CHECK(read(fd, text, sizeof(text) - 1) > 0, "%s", strerror(errno));
	chosen = strchr(text, '[');
	CHECK(chosen && sscanf(chosen, "[%15[a-z]]", before) == 1, "%s", text);
	CHECK(pwrite(fd, value, strlen(value), 0) == (ssize_t)strlen(value), "%s", strerror(errno));
	close(fd);
	return true;
}

/*
 * A page is touched, dropped and touched again in one epoch. To resolve the second fault, the kernel maps
 * a large folio, and with it neighbours of the page, which are not armed.
 */
static void expect_unknown_neighbours(struct sampler *sampler, struct target *target, uint64_t address)
{
	char before[16], ignored[16];
	uint64_t found[32];

	if (!set_large_folios("never", before)) {
		printf("unknown: this kernel has no folios of 64 KiB\n");
		return;
	}
	target_call(target, drop, address, FOLIO);
	target_call(target, permit_large_folios, address, FOLIO);
	target_call(target, write_pages, address, 1);
	sampler_epoch(sampler);
	target_call(target, read_pages, address, 1);
	target_call(target, drop, address, 1);
	set_large_folios("always", ignored);
	target_call(target, write_pages, address, 1);
	set_large_folios(before, ignored);
	target_call(target, read_pages, address + PAGE, FOLIO - 1);
	sampler_epoch(sampler);
	sampler_count_flags(sampler, address, FOLIO, found);
	/* if there was no free block of 64 KiB, the kernel mapped one page, and the reads were births */
	if (found[SENTINEL_ACCESS_BIRTH] == FOLIO - 1) {
		printf("unknown: there was no free folio of 64 KiB\n");
		return;
	}
	CHECK(found[UNKNOWN] == FOLIO - 1, "%lu neighbours unknown", found[UNKNOWN]);
	CHECK(found[0] == 1, "%lu accesses to the page", found[0]);
}

/* Lets the target make the call on PART pages; checks their records in this epoch and the next one. */
static void expect_unknown(struct sampler *sampler, struct target *target, const char *what,
			   target_call_t call, uint64_t address, uint64_t unknown, uint64_t accessed_next)
{
	uint64_t found[32];

	target_call(target, call, address, PART);
	sampler_epoch(sampler);
	sampler_count_flags(sampler, address, PART, found);
	CHECK(found[UNKNOWN] == unknown, "%s: %lu pages unknown, not %lu", what, found[UNKNOWN], unknown);
	for (int flags = 0; flags < 32; flags++)
		CHECK(flags == UNKNOWN || !found[flags], "%s: %lu records %d", what, found[flags], flags);
	target_call(target, read_pages, address, PART);
	sampler_epoch(sampler);
	sampler_count_flags(sampler, address, PART, found);
	CHECK(found[0] + found[SENTINEL_ACCESS_BIRTH] == accessed_next,
	      "%s: %lu and %lu accesses in the next epoch", what, found[0], found[SENTINEL_ACCESS_BIRTH]);
	CHECK(found[UNKNOWN] == (accessed_next ? 0 : PART), "%s: %lu unknown in the next epoch", what,
	      found[UNKNOWN]);
}

void check_unknown(void)
{
	struct target target = target_start();
	uint64_t address = target_call(&target, map_pages, PAGES, 1);
	struct sampler sampler = sampler_open(target.pid, 1 << 14);
	uint64_t found[32];

	sampler_add(&sampler, address, PAGES);
	CHECK(sampler_arm(&sampler, address, PAGES).pages_done == PAGES, "arm");
	expect_unknown(&sampler, &target, "mprotect", protect_and_back, address, PART, PART);
	expect_unknown(&sampler, &target, "PROT_NONE", protect_to_none_and_back, address + PART * PAGE, PART,
		       PART);
	expect_unknown(&sampler, &target, "fork", fork_and_wait, address + 2 * PART * PAGE, 0, PART);
	expect_unknown(&sampler, &target, "MADV_DONTNEED", drop, address + 3 * PART * PAGE, 0, PART);
	/* a read of dropped pages maps the zero page, which cannot be armed */
	target_call(&target, read_pages, address + 3 * PART * PAGE, PART);
	sampler_epoch(&sampler);
	sampler_count_flags(&sampler, address + 3 * PART * PAGE, PART, found);
	CHECK(found[UNKNOWN] == PART, "%lu zero pages unknown", found[UNKNOWN]);
	expect_unknown(&sampler, &target, "MADV_DONTNEED twice", drop_twice, address + 7 * PART * PAGE, 0,
		       PART);
	expect_unknown(&sampler, &target, "mprotect and MADV_DONTNEED", protect_read_and_drop,
		       address + 8 * PART * PAGE, PART, PART);
	expect_unknown(&sampler, &target, "mremap", mremap_in, address + 4 * PART * PAGE, PART, PART);
	expect_unknown(&sampler, &target, "a file", map_file, address + 5 * PART * PAGE, PART, 0);

	/* a recorded access remains, even if the page is unarmed later */
	target_call(&target, read_pages, address + 6 * PART * PAGE, PART);
	target_call(&target, protect_and_back, address + 6 * PART * PAGE, PART);
	sampler_epoch(&sampler);
	sampler_count_flags(&sampler, address + 6 * PART * PAGE, PART, found);
	CHECK(found[0] == PART && !found[UNKNOWN], "%lu accesses, %lu unknown", found[0], found[UNKNOWN]);

	/* arming dropped pages does not make them unknown */
	target_call(&target, drop, address + 9 * PART * PAGE, PART);
	sampler_arm(&sampler, address + 9 * PART * PAGE, PART);
	sampler_epoch(&sampler);
	sampler_count_flags(&sampler, address + 9 * PART * PAGE, PART, found);
	CHECK(!found[UNKNOWN], "%lu dropped and armed pages are unknown", found[UNKNOWN]);

	expect_unknown_neighbours(&sampler, &target, (address / (FOLIO * PAGE) + 1) * FOLIO * PAGE);

	/* disarmed pages are not recorded */
	sampler_disarm(&sampler, address, PAGES);
	target_call(&target, protect_and_back, address, PART);
	sampler_epoch(&sampler);
	CHECK(sampler_count(&sampler, address, PAGES, ANY_NODE) == 0, "records of disarmed pages");
	CHECK(sampler_stats(&sampler).unarmed >= 5 * PART, "%llu", sampler_stats(&sampler).unarmed);
	printf("unknown: mprotect, mremap, the zero page and a file make pages unknown; fork and "
	       "MADV_DONTNEED do not; accesses in the next epoch are recorded\n");
	sampler_close(&sampler);
	target_stop(&target);
}

/*
 * move_pages() of armed pages: kernel 6.1 leaves them as they are; newer kernels
 * move and unarm them. Each unarmed page must be reported as unknown. Disarmed
 * pages move on all kernels, even if epochs begin before they are armed again.
 */
void check_moved(void)
{
	struct target target = target_start();
	uint64_t address = target_call(&target, map_pages, PAGES, 0);
	uint64_t found[32], unknown, moved = 0;
	struct sampler sampler;

	target_call(&target, bind_pages, address, PAGES << 8);
	target_call(&target, write_pages, address, PAGES);
	sampler = sampler_open(target.pid, 1 << 14);
	sampler_add(&sampler, address, PAGES);
	sampler_arm(&sampler, address, PAGES);
	move_to(target.pid, address, PAGES, 1);
	sampler_epoch(&sampler);
	sampler_count_flags(&sampler, address, PAGES, found);
	unknown = found[UNKNOWN];
	CHECK(unknown == 0 || unknown == PAGES, "%lu pages unknown", unknown);
	target_call(&target, read_pages, address, PAGES);
	moved = sampler_count(&sampler, address, PAGES, 1);
	CHECK(moved == unknown, "%lu pages moved, but %lu unknown", moved, unknown);
	sampler_epoch(&sampler);

	for (int round = 0; round < 20; round++) {
		int node = round % 2;

		sampler_disarm(&sampler, address, PAGES);
		sampler_epoch(&sampler);
		move_to(target.pid, address, PAGES / 2, node);
		sampler_epoch(&sampler);
		move_to(target.pid, address + PAGES / 2 * PAGE, PAGES - PAGES / 2, node);
		sampler_epoch(&sampler);
		sampler_arm(&sampler, address, PAGES);
		target_call(&target, read_pages, address, PAGES);
		CHECK(sampler_count(&sampler, address, PAGES, node) == PAGES, "round %d", round);
		sampler_epoch(&sampler);
	}
	printf("moved: armed pages %s; disarmed pages moved 20 times across epochs\n",
	       unknown ? "moved and were unknown" : "stayed where they were");
	sampler_close(&sampler);
	target_stop(&target);
}
