/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Counts the page faults of watched processes and, on request, records each of them.
 *
 * The tracepoints exceptions:page_fault_user and exceptions:page_fault_kernel mark the start
 * of a fault. Both have
 * TP_PROTO(unsigned long address, struct pt_regs *, unsigned long error_code).
 * The cause of some faults is visible from the functions that the kernel calls next. Such a
 * cause is counted and recorded in addition to the fault, with the page's address.
 */

/* bits of the x86 page-fault error code, arch/x86/include/asm/trap_pf.h */
#define PF_PROTECTION (1u << 0)
#define PF_WRITE (1u << 1)
#define PF_INSTRUCTION (1u << 4)

struct fault {
	u64 time_ns; /* CLOCK_MONOTONIC */
	u64 address;
	u32 pid; /* id of the process, not of the thread */
	u8 kind;
	u8 write;
	u16 reserved;
};

BPF_RINGBUF_OUTPUT(faults, FAULT_RING_PAGES);

/*
 * Processes whose faults are recorded, and the number of these processes. Checking
 * whether the number is 0 is cheap, so a fault that is only counted costs little.
 */
BPF_HASH(recorded, u32, u32, 1024);
BPF_ARRAY(recorded_number, u32, 1);

static inline void note_fault(u32 pid, u64 address, u32 kind, u32 write)
{
	struct watch *watch = watched.lookup(&pid);
	struct fault *fault;
	u32 *number, zero = 0;

	if (!watch)
		return;
	__sync_fetch_and_add(&watch->faults[kind & (FAULT_KINDS - 1)], 1);
	number = recorded_number.lookup(&zero);
	if (!number || !*number || !recorded.lookup(&pid))
		return;
	fault = faults.ringbuf_reserve(sizeof(*fault));
	if (!fault) {
		count_drops(DROP_FAULT, 1);
		return;
	}
	fault->time_ns = bpf_ktime_get_ns();
	fault->address = address;
	fault->pid = pid;
	fault->kind = kind;
	fault->write = write;
	fault->reserved = 0;
	/* the daemon polls the ring; waking the daemon here would slow the training process down */
	faults.ringbuf_submit(fault, BPF_RB_NO_WAKEUP);
}

int on_page_fault(struct bpf_raw_tracepoint_args *ctx)
{
	u32 error = ctx->args[2];
	u32 kind;

	/* ignore faults at kernel addresses */
	if ((s64)ctx->args[0] < 0)
		return 0;
	if (error & PF_INSTRUCTION)
		kind = FAULT_INSTRUCTION;
	else
		kind = (error & PF_PROTECTION ? FAULT_PROTECTION_READ : FAULT_MISSING_READ) +
		       (error & PF_WRITE ? 1 : 0);
	note_fault(bpf_get_current_pid_tgid() >> 32, ctx->args[0], kind, error & PF_WRITE ? 1 : 0);
	return 0;
}

/* mpol_misplaced(folio, fault, address): called once in each NUMA hint fault */
int on_hint_fault(struct bpf_raw_tracepoint_args *ctx)
{
	note_fault(bpf_get_current_pid_tgid() >> 32, ctx->args[2], FAULT_HINT, 0);
	return 0;
}

#define VM_FAULT_MAJOR 0x4 /* linux/mm_types.h */

/* vm_fault_t do_swap_page(struct vm_fault *): called if the page is in swap or under migration */
int on_swap_page(struct bpf_raw_tracepoint_args *ctx)
{
	u64 fault = ctx->args[0], address = 0;

	if (!(ctx->args[1] & VM_FAULT_MAJOR))
		return 0;
	bpf_probe_read_kernel(&address, sizeof(address), (void *)(fault + VM_FAULT_ADDRESS));
	note_fault(bpf_get_current_pid_tgid() >> 32, address, FAULT_MAJOR, 0);
	return 0;
}

/* migration_entry_wait(mm, pmd, address): called if the fault waits for a page under migration */
int on_page_in_motion(struct bpf_raw_tracepoint_args *ctx)
{
	note_fault(bpf_get_current_pid_tgid() >> 32, ctx->args[2], FAULT_IN_MOTION, 0);
	return 0;
}
