/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the programs share: the set of watched processes and their counters.
 *
 * The loader joins this file and the programs' files into one text for bcc,
 * because bcc rewrites map accesses only in the file that it is given. The
 * layouts are those of sentineld/observe/ebpf_model.py; only the few kernel
 * declarations needed stand here, since headers are most of the compile time.
 */

/* watch.flags */
#define WATCH_RECORD (1u << 0) /* ring records of page faults, not counts alone */

enum fault_kind {
	FAULT_MISSING_READ,
	FAULT_MISSING_WRITE,
	FAULT_PROTECTION_READ,
	FAULT_PROTECTION_WRITE,
	FAULT_INSTRUCTION,
	FAULT_KINDS = 8, /* a power of two, so that a mask bounds the index */
};

struct watch {
	u32 flags;
	u32 epoch; /* of the latest access of sentinel:page_access */
	u64 faults[FAULT_KINDS];
	u64 accesses;
	u64 access_writes;
};

/* user space writes and removes the entries; the programs only count in them */
BPF_HASH(watched, u32, struct watch, 1024);

enum drop {
	DROP_FAULT, /* ring records that found no room */
	DROP_MIGRATION, /* calls with a mode or reason out of bounds */
	DROPS,
};

BPF_ARRAY(drops, u64, DROPS);

static inline void count_drop(u32 drop)
{
	u64 *count = drops.lookup(&drop);

	if (count)
		__sync_fetch_and_add(count, 1);
}
