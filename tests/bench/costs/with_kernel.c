// SPDX-License-Identifier: Apache-2.0
/* Observers that use a stock kernel to detect page accesses. */
#define _GNU_SOURCE
#include "costs.h"
#include "observers.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Soft-dirty bits: cleared by clear_refs, read as bit 55 of pagemap entries. Detects only writes. */

#define SOFT_DIRTY (1ull << 55)

static int clear_refs_fd, pagemap_fd;
static uint64_t *entries;

static int checked_open(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC);

	CHECK(fd >= 0, "%s: %s", path, strerror(errno));
	return fd;
}

static void pagemap_open(void)
{
	pagemap_fd = checked_open("/proc/self/pagemap", O_RDONLY);
	entries = malloc(pages * sizeof(*entries));
}

static void pagemap_close(void)
{
	close(pagemap_fd);
	free(entries);
}

static void soft_dirty_begin(char *memory)
{
	(void)memory;
	clear_refs_fd = checked_open("/proc/self/clear_refs", O_WRONLY);
	pagemap_open();
}

static void soft_dirty_epoch_begin(char *memory)
{
	(void)memory;
	CHECK(write(clear_refs_fd, "4", 1) == 1, "clear_refs: %s", strerror(errno));
}

static void soft_dirty_epoch_end(char *memory, uint8_t *seen)
{
	ssize_t bytes = pages * sizeof(*entries);
	off_t at = (uint64_t)memory / PAGE * sizeof(*entries);

	CHECK(pread(pagemap_fd, entries, bytes, at) == bytes, "pagemap: %s", strerror(errno));
	for (uint64_t page = 0; page < pages; page++)
		seen[page] = entries[page] & SOFT_DIRTY ? SEEN | SEEN_WRITTEN : 0;
}

static void soft_dirty_end(char *memory)
{
	(void)memory;
	close(clear_refs_fd);
	pagemap_close();
}

const struct observer observer_soft_dirty = {
	"soft_dirty", NULL, soft_dirty_begin, soft_dirty_epoch_begin, soft_dirty_epoch_end, soft_dirty_end,
};

/* PAGEMAP_SCAN of pages that userfaultfd write-protects asynchronously. Detects only writes. */

#define REGIONS 512

static int userfault_fd;
static struct page_region regions[REGIONS];

static void scan(char *memory, uint8_t *seen)
{
	struct pm_scan_arg arg = {
		.size = sizeof(arg),
		.flags = PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC,
		.start = (uint64_t)memory,
		.end = (uint64_t)memory + pages * PAGE,
		.vec = (uint64_t)regions,
		.vec_len = REGIONS,
		.category_mask = PAGE_IS_WRITTEN,
		.return_mask = PAGE_IS_WRITTEN,
	};
	int count;

	do {
		count = ioctl(pagemap_fd, PAGEMAP_SCAN, &arg);
		CHECK(count >= 0, "PAGEMAP_SCAN: %s", strerror(errno));
		for (int i = 0; i < count; i++) {
			uint64_t first = (regions[i].start - (uint64_t)memory) / PAGE;
			uint64_t last = (regions[i].end - (uint64_t)memory) / PAGE;

			memset(seen + first, SEEN | SEEN_WRITTEN, last - first);
		}
		arg.start = arg.walk_end;
	} while (arg.walk_end < arg.end);
}

static void wp_async_begin(char *memory)
{
	struct uffdio_api api = {
		.api = UFFD_API,
		.features = UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED,
	};
	struct uffdio_register all = {
		.range = {(uint64_t)memory, pages * PAGE},
		.mode = UFFDIO_REGISTER_MODE_WP,
	};
	uint8_t *ignored = calloc(pages, 1);

	userfault_fd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	CHECK(userfault_fd >= 0, "userfaultfd: %s", strerror(errno));
	CHECK(!ioctl(userfault_fd, UFFDIO_API, &api), "UFFDIO_API: %s", strerror(errno));
	CHECK(!ioctl(userfault_fd, UFFDIO_REGISTER, &all), "UFFDIO_REGISTER: %s", strerror(errno));
	pagemap_open();
	scan(memory, ignored);
	free(ignored);
}

static void wp_async_end(char *memory)
{
	(void)memory;
	pagemap_close();
	close(userfault_fd);
}

const struct observer observer_wp_async = {
	"pagemap_scan", NULL, wp_async_begin, NULL, scan, wp_async_end,
};

/* mprotect() and a SIGSEGV handler in the program itself. */

static char *hidden;
static uint8_t *hidden_seen;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	uint64_t page = ((uint64_t)info->si_addr - (uint64_t)hidden) / PAGE;
	bool write = ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2;

	(void)signal;
	if (page >= pages)
		_exit(3);
	hidden_seen[page] |= write ? SEEN | SEEN_WRITTEN : SEEN;
	if (mprotect(hidden + page * PAGE, PAGE, write ? PROT_READ | PROT_WRITE : PROT_READ))
		_exit(4);
}

static void mprotect_begin(char *memory)
{
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};

	hidden = memory;
	hidden_seen = calloc(pages, 1);
	CHECK(!sigaction(SIGSEGV, &action, NULL), "%s", strerror(errno));
}

static void mprotect_epoch_begin(char *memory)
{
	CHECK(!mprotect(memory, pages * PAGE, PROT_NONE), "%s", strerror(errno));
}

static void mprotect_epoch_end(char *memory, uint8_t *seen)
{
	(void)memory;
	memcpy(seen, hidden_seen, pages);
	memset(hidden_seen, 0, pages);
}

static void mprotect_end(char *memory)
{
	CHECK(!mprotect(memory, pages * PAGE, PROT_READ | PROT_WRITE), "%s", strerror(errno));
	signal(SIGSEGV, SIG_DFL);
	free(hidden_seen);
}

const struct observer observer_mprotect = {
	"mprotect_sigsegv", NULL, mprotect_begin, mprotect_epoch_begin, mprotect_epoch_end, mprotect_end,
};

/* perf's software event for page faults; each fault is sampled with its address. */

#define PERF_PAGES 512ul /* pages of the sample ring, which follows one control page */

static int perf_fd;
static struct perf_event_mmap_page *perf_map;

static void perf_faults_begin(char *memory)
{
	struct perf_event_attr how = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(how),
		.config = PERF_COUNT_SW_PAGE_FAULTS,
		.sample_period = 1,
		.sample_type = PERF_SAMPLE_ADDR,
		.exclude_kernel = 1,
	};

	(void)memory;
	perf_fd = syscall(SYS_perf_event_open, &how, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
	CHECK(perf_fd >= 0, "perf_event_open: %s", strerror(errno));
	perf_map = mmap(NULL, (1 + PERF_PAGES) * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, perf_fd, 0);
	CHECK(perf_map != MAP_FAILED, "%s", strerror(errno));
}

static void perf_faults_epoch_end(char *memory, uint8_t *seen)
{
	uint64_t head = __atomic_load_n(&perf_map->data_head, __ATOMIC_ACQUIRE);
	uint64_t at = perf_map->data_tail;

	while (at < head) {
		/*
		 * All record sizes are multiples of 8 bytes, so no header wraps around the end of
		 * the ring. A sample has 16 bytes and could wrap only after a PERF_RECORD_LOST,
		 * which has 24 bytes. But no sample is lost, because the ring has room for 131,072
		 * samples, far more than the faults of an epoch.
		 */
		uint64_t place = at % (PERF_PAGES * PAGE);
		struct perf_event_header *header = (void *)((char *)perf_map + PAGE + place);
		uint64_t address = *(uint64_t *)(header + 1);

		if (header->type == PERF_RECORD_SAMPLE && (address - (uint64_t)memory) / PAGE < pages)
			seen[(address - (uint64_t)memory) / PAGE] |= SEEN;
		at += header->size;
	}
	__atomic_store_n(&perf_map->data_tail, head, __ATOMIC_RELEASE);
}

static void perf_faults_end(char *memory)
{
	(void)memory;
	munmap(perf_map, (1 + PERF_PAGES) * PAGE);
	close(perf_fd);
}

const struct observer observer_perf_faults = {
	"perf_page_faults", NULL, perf_faults_begin, NULL, perf_faults_epoch_end, perf_faults_end,
};

/* perf mem: a processor's precise memory events. */

static const char *perf_memory_missing(void)
{
	struct perf_event_attr how = {
		.type = PERF_TYPE_HARDWARE,
		.size = sizeof(how),
		.config = PERF_COUNT_HW_INSTRUCTIONS,
		.sample_period = 10000,
		.sample_type = PERF_SAMPLE_ADDR,
		.precise_ip = 2,
		.exclude_kernel = 1,
	};
	int fd = syscall(SYS_perf_event_open, &how, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);

	if (fd < 0)
		return "the emulated processor has no performance counters";
	close(fd);
	return "not measured: sampling by the processor itself executes no guest instructions";
}

const struct observer observer_perf_memory = {.name = "perf_mem", .missing = perf_memory_missing};
