/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Differences between the kernels this module is built for (6.1 to 7.3), and
 * substitutes for symbols that inline page-table functions use but the kernel
 * does not export. Include this file before any other header.
 */
#ifndef SENTINEL_COMPAT_H
#define SENTINEL_COMPAT_H

#include <linux/kconfig.h>
#include <linux/version.h>

#ifndef CONFIG_X86_64
#error "sentinel: supports x86-64 only: TLB flushes and PTEs are architecture-specific"
#endif
#ifdef CONFIG_PREEMPT_RT
#error "sentinel: does not support PREEMPT_RT: page-table locks sleep, the fault hook must not"
#endif
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "sentinel: needs Linux 6.1 or later"
#endif
/* Without NUMA balancing, pte_protnone() is always false: the hook would never restore a page. */
#ifndef CONFIG_NUMA_BALANCING
#error "sentinel: needs CONFIG_NUMA_BALANCING: an armed page would fault forever"
#endif
#ifndef CONFIG_MMU_NOTIFIER
#error "sentinel: needs CONFIG_MMU_NOTIFIER"
#endif
#ifndef CONFIG_DYNAMIC_FTRACE_WITH_ARGS
#error "sentinel: needs CONFIG_DYNAMIC_FTRACE_WITH_ARGS"
#endif

/*
 * pte_modify() keeps the bits of _PAGE_CHG_MASK, which contains _PAGE_CC. The kernel's
 * definition of _PAGE_CC reads the variable cc_mask, which is not exported. For user
 * pages, cc_mask equals sme_me_mask if the kernel encrypts memory; otherwise there is no
 * encryption bit to keep.
 */
#include <asm/pgtable_types.h>
#undef _PAGE_CC
#define _PAGE_CC (_AT(pteval_t, sme_me_mask))

#include <linux/ftrace.h>
#include <linux/hrtimer.h>
#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/sched/coredump.h>
#include <asm/invpcid.h>
#include <asm/special_insns.h>
#ifndef SUID_DUMP_USER /* newer kernels keep the dumpable state in the task, not in its mm */
#include <linux/sched/exec_state.h>
#endif

/*
 * Makes a PTE writable. Takes no VMA, because the VMA matters only for the PTEs of shadow
 * stacks, which are never armed.
 */
static inline pte_t sentinel_pte_mkwrite(pte_t pte)
{
#ifdef pte_mkwrite /* a macro in kernels whose pte_mkwrite() takes a VMA */
	return pte_clear_saveddirty(pte_mkwrite_novma(pte));
#else
	return pte_mkwrite(pte);
#endif
}

/*
 * Returns argument n (counted from 0) of a traced function. A callback gets the arguments
 * even if FTRACE_OPS_FL_SAVE_REGS is not set. The flag is not set, because it would make
 * ftrace save and restore all registers at each page fault of the system.
 */
static inline unsigned long sentinel_ftrace_argument(struct ftrace_regs *fregs, unsigned int n)
{
#ifdef ftrace_regs_get_argument
	return ftrace_regs_get_argument(fregs, n);
#else
	return regs_get_kernel_argument(&fregs->regs, n);
#endif
}

/* Runs another function instead of the traced one. */
static inline void sentinel_ftrace_replace(struct ftrace_regs *fregs, unsigned long function)
{
#ifdef ftrace_regs_set_instruction_pointer
	ftrace_regs_set_instruction_pointer(fregs, function);
#else
	ftrace_instruction_pointer_set(fregs, function);
#endif
}

/* Initializes a timer that uses CLOCK_MONOTONIC and relative expiry times. */
static inline void sentinel_hrtimer_setup(struct hrtimer *timer,
					  enum hrtimer_restart (*function)(struct hrtimer *))
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
	hrtimer_setup(timer, function, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
#else
	hrtimer_init(timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
	timer->function = function;
#endif
}

/*
 * Returns true if a process of the same user is allowed to trace the task: the task
 * has not changed its user, and it executes a program that the user may read. mm is
 * the task's address space.
 */
static inline bool sentinel_dumpable(struct task_struct *task, struct mm_struct *mm)
{
#ifdef SUID_DUMP_USER
	return get_dumpable(mm) == SUID_DUMP_USER;
#else
	struct task_exec_state *state;
	bool dumpable;

	rcu_read_lock();
	state = rcu_dereference(task->exec_state);
	dumpable = state && READ_ONCE(state->dumpable) == TASK_DUMPABLE_OWNER;
	rcu_read_unlock();
	return dumpable;
#endif
}

/*
 * Returns the CPUs whose TLBs have to be flushed for the address space.
 * sentinel_flush_tlb() has incremented the generation, mm->context.tlb_gen. Any CPU that is
 * not returned compares generations when it next switches to the address space, and flushes
 * its TLB then.
 * If the address space has a global ASID, a CPU does not compare generations when it
 * switches, because the hardware broadcasts the kernel's own TLB flushes. The module
 * does not use this broadcast, so any CPU may keep old entries, and all CPUs have to
 * be flushed.
 */
static inline const struct cpumask *sentinel_tlb_cpus(struct mm_struct *mm)
{
#ifdef CONFIG_BROADCAST_TLB_FLUSH
	if (smp_load_acquire(&mm->context.global_asid)) /* modules cannot call mm_global_asid() */
		return cpu_online_mask;
#endif
	return mm_cpumask(mm);
}

/*
 * Flushes the user entries of all address spaces from this CPU's TLB; interrupts
 * are off. __flush_tlb_all() would suffice, but newer kernels export it to KVM only.
 */
static inline void sentinel_flush_this_cpu(void)
{
	unsigned long cr4;

	if (boot_cpu_has(X86_FEATURE_INVPCID)) {
		invpcid_flush_all_nonglobals();
		return;
	}
	/* changing CR4.PGE flushes the whole TLB; every x86-64 CPU has this bit */
	cr4 = native_read_cr4();
	asm volatile("mov %0, %%cr4" : : "r"(cr4 ^ X86_CR4_PGE) : "memory");
	asm volatile("mov %0, %%cr4" : : "r"(cr4) : "memory");
}

/* Returns true if userfaultfd protects the page from writes, or from any access. */
static inline bool sentinel_pte_uffd(pte_t pte)
{
#ifdef VM_UFFD_RWP
	return pte_uffd(pte);
#else
	return pte_uffd_wp(pte);
#endif
}

/* The VMA flag of memory in which userfaultfd makes entries PROT_NONE. */
#ifdef VM_UFFD_RWP
#define SENTINEL_VM_UFFD_RWP VM_UFFD_RWP
#else
#define SENTINEL_VM_UFFD_RWP VM_NONE
#endif

#ifdef VM_SHADOW_STACK
#define SENTINEL_VM_SHADOW_STACK VM_SHADOW_STACK
#else
#define SENTINEL_VM_SHADOW_STACK VM_NONE
#endif

#endif
