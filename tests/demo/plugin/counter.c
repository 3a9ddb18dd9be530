// SPDX-License-Identifier: GPL-2.0-only
/*
 * A QEMU plugin that counts, by NUMA node, those memory accesses of the guest that miss
 * a small simulated cache. The demo compares these counts with the kernel module's.
 * The plugin does not depend on the guest's kernel, page tables or processes.
 *
 * While it counts, the plugin also keeps a modelled clock (clock.h): each instruction and each miss
 * takes the time that `prices` gives. The guest reads the clock from struct shared: the file with
 * this struct is also the memory of a device of the guest.
 *
 *   -plugin counter.so,counts=PATH
 *
 * PATH is a file that holds struct shared (below); tests/demo/counter.py creates it
 * on the host. The word `wanted` of this struct switches counting on and off. A CPU reads
 * the word when it goes idle and when it enters or leaves the kernel (swapgs). While
 * counting is off, no memory access is instrumented.
 *
 * Each CPU has a cache of physical lines: L2_BYTES, L2_WAYS-way, LRU. A
 * direct-mapped filter of FILTER_LINES virtual lines in front of the cache avoids
 * repeated address translations when a line is accessed repeatedly. Cache and filter
 * are cleared when counting starts. If the guest remaps a virtual line that is in the
 * filter, accesses to this line are not counted until another line replaces it in
 * the filter.
 *
 * Accesses by the last instruction of a translation block (a jump, a call, a system
 * call) are counted only if this instruction is a string operation. Any other last
 * instruction may leave the block from within a helper function of QEMU. If it did so
 * while its accesses are counted, QEMU 7.2 would keep a pointer to the instruction's
 * callbacks, and this pointer would dangle once counting is switched off.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "qemu_plugin_api.h"

#define LINE_SHIFT 6
#define FILTER_LINES 64
#define L2_BYTES (1u << 20)
#define L2_WAYS 8
#define L2_SETS (L2_BYTES / (1u << LINE_SHIFT) / L2_WAYS)
#define CPUS_MAX CLOCK_CPUS_MAX
#define NODES_MAX 4
#define RANGES_MAX 16
#define GRAIN_SHIFT 28 /* 256 MiB */
#define GRAINS 64 /* for addresses below 16 GiB */

enum place { TENSORS, USER_OTHER, KERNEL, PLACE_COUNT };

struct range {
	uint64_t start;
	uint64_t end;
};

/* Same layout as in tests/demo/counter.py; a unit test compares the two. */
struct counts {
	uint64_t accesses[PLACE_COUNT]; /* accesses to lines that were not in the filter */
	uint64_t misses[PLACE_COUNT][NODES_MAX];
	uint64_t elsewhere; /* misses outside the nodes: ROM, firmware, memory of devices */
	uint64_t instructions;
	uint64_t grains[GRAINS]; /* misses by reported address, to verify the nodes' ranges */
};

/* Times in picoseconds. Misses outside the nodes have the price of node 0. */
struct prices {
	uint64_t instruction_ps;
	uint64_t load_ps[NODES_MAX]; /* a miss of a load */
	uint64_t store_ps[NODES_MAX];
};

struct shared {
	_Atomic uint64_t now_ps; /* the machine's time; the guest reads this word */
	_Atomic uint64_t idle_ps; /* the part of now_ps in which all CPUs were halted */
	struct prices prices; /* written by the host, before QEMU starts */
	_Atomic uint32_t wanted; /* written by the host: 1 to count */
	_Atomic uint32_t active; /* written by the plugin: 1 while it counts */
	uint32_t node_count; /* written by the host, before QEMU starts */
	_Atomic uint32_t range_count; /* written by the host while `active` is 0 */
	struct range nodes[NODES_MAX]; /* addresses as the plugin interface reports them */
	struct range tensors[RANGES_MAX]; /* virtual addresses */
	struct counts cpus[CPUS_MAX];
};

struct cache {
	uint64_t filter[FILTER_LINES];
	uint64_t lines[L2_SETS][L2_WAYS]; /* line + 1, or 0 if empty; most recently used first */
};

int qemu_plugin_version __attribute__((visibility("default"))) = QEMU_PLUGIN_INTERFACE;

static qemu_plugin_id_t plugin;
static struct shared *shared;
static struct cache caches[CPUS_MAX];
static struct clock machine_clock;

/* Looks the line up and makes it the most recently used one; returns true on a hit. */
static bool cache_access(struct cache *cache, uint64_t line)
{
	uint64_t *set = cache->lines[line % L2_SETS];
	uint64_t tag = line + 1;
	unsigned int way = 0;
	bool found;

	while (way < L2_WAYS - 1 && set[way] != tag)
		way++;
	found = set[way] == tag;
	memmove(set + 1, set, way * sizeof(*set));
	set[0] = tag;
	return found;
}

static enum place place_of(uint64_t vaddr)
{
	uint32_t count = atomic_load_explicit(&shared->range_count, memory_order_relaxed);

	if (vaddr >> 63)
		return KERNEL;
	for (uint32_t i = 0; i < count && i < RANGES_MAX; i++)
		if (vaddr >= shared->tensors[i].start && vaddr < shared->tensors[i].end)
			return TENSORS;
	return USER_OTHER;
}

/* Counts a miss and returns the node whose price it has. A miss outside the nodes is counted in
   `elsewhere` and has the price of node 0. */
static uint32_t count_miss(struct counts *counts, enum place place, uint64_t address)
{
	if (address >> GRAIN_SHIFT < GRAINS)
		counts->grains[address >> GRAIN_SHIFT]++;
	for (uint32_t node = 0; node < shared->node_count && node < NODES_MAX; node++) {
		if (address >= shared->nodes[node].start && address < shared->nodes[node].end) {
			counts->misses[place][node]++;
			return node;
		}
	}
	counts->elsewhere++;
	return 0;
}

static void on_access(unsigned int vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *data)
{
	uint64_t virtual_line = vaddr >> LINE_SHIFT;
	struct qemu_plugin_hwaddr *physical;
	struct counts *counts;
	struct cache *cache;
	enum place place;
	uint64_t address;

	(void)data;
	if (vcpu >= CPUS_MAX)
		return;
	cache = &caches[vcpu];
	if (cache->filter[virtual_line % FILTER_LINES] == virtual_line)
		return;
	cache->filter[virtual_line % FILTER_LINES] = virtual_line;
	physical = qemu_plugin_get_hwaddr(info, vaddr);
	if (!physical || qemu_plugin_hwaddr_is_io(physical))
		return;
	address = qemu_plugin_hwaddr_phys_addr(physical);
	counts = &shared->cpus[vcpu];
	place = place_of(vaddr);
	counts->accesses[place]++;
	if (!cache_access(cache, address >> LINE_SHIFT)) {
		uint32_t node = count_miss(counts, place, address);
		const uint64_t *price_ps =
			qemu_plugin_mem_is_store(info) ? shared->prices.store_ps : shared->prices.load_ps;

		clock_charge(&machine_clock, vcpu, price_ps[node]);
	}
}

/* Counts and charges instructions. data: their number in the block, without string operations. */
static void on_block(unsigned int vcpu, void *data)
{
	uint64_t instructions = (uintptr_t)data;

	if (vcpu >= CPUS_MAX)
		return;
	shared->cpus[vcpu].instructions += instructions;
	clock_charge(&machine_clock, vcpu, instructions * shared->prices.instruction_ps);
}

static void apply_switch(void);

static void on_swapgs(unsigned int vcpu, void *data)
{
	(void)vcpu;
	(void)data;
	apply_switch();
}

static void on_idle(qemu_plugin_id_t id, unsigned int vcpu)
{
	(void)id;
	if (vcpu < CPUS_MAX)
		clock_halt(&machine_clock, vcpu);
	apply_switch();
}

static void on_resume(qemu_plugin_id_t id, unsigned int vcpu)
{
	(void)id;
	if (vcpu < CPUS_MAX)
		clock_wake(&machine_clock, vcpu);
}

/* Whether the instruction is movs, stos, lods, cmps or scas. Such an instruction can end a block,
   but accesses memory without a helper, so its accesses can be counted. If the instruction
   has a repeat prefix, QEMU executes each iteration as a block. A processor moves whole cache lines
   instead, so the clock charges the iterations only for their misses. */
static bool is_string_operation(const struct qemu_plugin_insn *insn)
{
	const uint8_t *code = qemu_plugin_insn_data(insn);
	size_t size = qemu_plugin_insn_size(insn);
	size_t i = 0;

	while (i < size &&
	       (code[i] == 0xf2 || code[i] == 0xf3 || code[i] == 0x66 || (code[i] & 0xf0) == 0x40))
		i++;
	return i < size && code[i] >= 0xa4 && code[i] <= 0xaf && code[i] != 0xa8 && code[i] != 0xa9;
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	static const uint8_t swapgs[] = {0x0f, 0x01, 0xf8};
	bool counting = atomic_load(&shared->active);
	size_t count = qemu_plugin_tb_n_insns(tb);
	size_t charged = 0;

	(void)id;
	for (size_t i = 0; i < count; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

		charged += !is_string_operation(insn);
		if (qemu_plugin_insn_size(insn) == sizeof(swapgs) &&
		    !memcmp(qemu_plugin_insn_data(insn), swapgs, sizeof(swapgs)))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, on_swapgs, QEMU_PLUGIN_CB_NO_REGS, NULL);
		else if (counting && (i + 1 < count || is_string_operation(insn)))
			qemu_plugin_register_vcpu_mem_cb(insn, on_access, QEMU_PLUGIN_CB_NO_REGS,
							 QEMU_PLUGIN_MEM_RW, NULL);
	}
	if (counting)
		qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, QEMU_PLUGIN_CB_NO_REGS,
						     (void *)(uintptr_t)charged);
}

static void register_callbacks(qemu_plugin_id_t id)
{
	qemu_plugin_register_vcpu_idle_cb(id, on_idle);
	qemu_plugin_register_vcpu_resume_cb(id, on_resume);
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
}

/* Called with every CPU stopped, after all callbacks and translated code were removed. */
static void on_reset(qemu_plugin_id_t id)
{
	bool count = atomic_load(&shared->wanted);

	if (count) {
		memset(caches, 0, sizeof(caches));
		clock_align(&machine_clock);
	}
	atomic_store(&shared->active, count);
	register_callbacks(id);
}

/* Called on a CPU's thread. QEMU ignores a reset while another one is pending. */
static void apply_switch(void)
{
	if (atomic_load(&shared->wanted) != atomic_load(&shared->active))
		qemu_plugin_reset(plugin, on_reset);
}

static int fail(const char *what, const char *name)
{
	fprintf(stderr, "counter plugin: %s %s: %s\n", what, name, strerror(errno));
	return -1;
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info,
							       int argc, char **argv)
{
	const char *path = NULL;
	int fd;

	for (int i = 0; i < argc; i++)
		if (!strncmp(argv[i], "counts=", 7))
			path = argv[i] + 7;
	if (!path || !info->system_emulation) {
		fprintf(stderr, "counter plugin: needs counts=PATH and system emulation\n");
		return -1;
	}
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return fail("open", path);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (shared == MAP_FAILED)
		return fail("map", path);
	plugin = id;
	clock_init(&machine_clock, &shared->now_ps, &shared->idle_ps);
	register_callbacks(id);
	return 0;
}
