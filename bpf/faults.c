/* SPDX-License-Identifier: GPL-2.0-only */
/* exceptions:page_fault_user: TP_PROTO(unsigned long address, struct pt_regs *, unsigned long error_code) */

/* bits of the x86 page-fault error code, arch/x86/include/asm/trap_pf.h */
#define PF_PROTECTION (1u << 0)
#define PF_WRITE (1u << 1)
#define PF_INSTRUCTION (1u << 4)

struct fault {
	u64 time_ns; /* CLOCK_MONOTONIC */
	u64 address;
	u32 pid; /* the process, not the thread */
	u8 kind;
	u8 write;
	u16 reserved;
};

BPF_RINGBUF_OUTPUT(faults, FAULT_RING_PAGES);

int on_page_fault(struct bpf_raw_tracepoint_args *ctx)
{
	u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct watch *watch = watched.lookup(&pid);
	struct fault *fault;
	u32 error, kind;

	if (!watch)
		return 0;
	error = ctx->args[2];
	if (error & PF_INSTRUCTION)
		kind = FAULT_INSTRUCTION;
	else
		kind = (error & PF_PROTECTION ? FAULT_PROTECTION_READ : FAULT_MISSING_READ) +
		       (error & PF_WRITE ? 1 : 0);
	__sync_fetch_and_add(&watch->faults[kind & (FAULT_KINDS - 1)], 1);
	if (!(watch->flags & WATCH_RECORD))
		return 0;
	fault = faults.ringbuf_reserve(sizeof(*fault));
	if (!fault) {
		count_drop(DROP_FAULT);
		return 0;
	}
	fault->time_ns = bpf_ktime_get_ns();
	fault->address = ctx->args[0];
	fault->pid = pid;
	fault->kind = kind;
	fault->write = error & PF_WRITE ? 1 : 0;
	fault->reserved = 0;
	/* the daemon drains at its own pace: waking it costs the training process time */
	faults.ringbuf_submit(fault, BPF_RB_NO_WAKEUP);
	return 0;
}
