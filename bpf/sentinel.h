/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shared by all eBPF programs of this folder: the set of watched processes and their counters.
 *
 * The loader joins this file and the programs' files into one text for bcc, because
 * bcc rewrites map accesses only in the file that it is given.
 * sentineld/model/kernel_events.py repeats the structures as numpy dtypes. No kernel
 * headers are included, because compiling them would take most of the compile time. The
 * programs need only a few offsets of fields in kernel structures. The loader takes these
 * offsets from the kernel's BTF (sentineld/observe/ebpf_kernel.py) and passes them as
 * macros.
 */

enum fault_kind {
	FAULT_MISSING_READ,
	FAULT_MISSING_WRITE,
	FAULT_PROTECTION_READ,
	FAULT_PROTECTION_WRITE,
	FAULT_INSTRUCTION,
	/* The next three kinds are detected while the kernel handles a fault, which is also counted
	   as one of the kinds above. */
	FAULT_MAJOR,
	FAULT_HINT,
	FAULT_IN_MOTION,
	FAULT_KINDS, /* a power of two, so that a mask bounds the index */
};

struct watch {
	u32 epoch; /* epoch of the latest sentinel:page_access event */
	u32 reserved;
	u64 faults[FAULT_KINDS];
	u64 accesses;
	u64 access_writes;
};

/* user space adds and removes entries; the programs only update existing entries */
BPF_HASH(watched, u32, struct watch, 1024);

enum drop {
	DROP_FAULT, /* fault records lost because the ring was full */
	DROP_MIGRATION, /* migrations with a mode or reason out of bounds */
	DROP_DISTURBANCE, /* pages whose disturbance (disturbances.c) did not fit in the map */
	DROPS,
};

BPF_ARRAY(drops, u64, DROPS);

static inline void count_drops(u32 drop, u64 number)
{
	u64 *count = drops.lookup(&drop);

	if (count)
		__sync_fetch_and_add(count, number);
}
