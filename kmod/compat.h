/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Differences between the kernels this module is built for (6.1 and 6.12), and
 * substitutes for symbols that inline page-table functions use but the kernel
 * does not export. Include it before any other header.
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
#ifndef CONFIG_MMU_NOTIFIER
#error "sentinel: needs CONFIG_MMU_NOTIFIER"
#endif
#ifndef CONFIG_DYNAMIC_FTRACE_WITH_ARGS
#error "sentinel: needs CONFIG_DYNAMIC_FTRACE_WITH_ARGS"
#endif

/*
 * pte_modify() keeps the bits of _PAGE_CHG_MASK, which reads cc_mask, a symbol
 * that is not exported. For user pages cc_mask equals sme_me_mask if the kernel
 * encrypts memory; otherwise no bit has to be kept.
 */
#include <asm/pgtable_types.h>
#undef _PAGE_CC
#define _PAGE_CC (_AT(pteval_t, sme_me_mask))

#include <linux/ftrace.h>
#include <linux/mm.h>
#include <linux/pgtable.h>

/* Makes a PTE writable. Shadow stacks would need the VMA, but are never armed. */
static inline pte_t sentinel_pte_mkwrite(pte_t pte)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 7, 0)
	return pte_clear_saveddirty(pte_mkwrite_novma(pte));
#else
	return pte_mkwrite(pte);
#endif
}

/*
 * Returns argument n (from 0) of a traced function. Every ftrace callback gets
 * the arguments; FTRACE_OPS_FL_SAVE_REGS would save and restore all registers at
 * each page fault of the system.
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

/*
 * The function that moves pages for mremap(). Before 6.15 it takes its arguments
 * (vma, old_addr, new_vma, new_addr, len, ...) in registers, since then in a struct.
 */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 15, 0)
#define SENTINEL_MOVE_PAGE_TABLES "move_page_tables"
#else
#define SENTINEL_MOVE_PAGE_TABLES ""
#endif

#ifdef VM_SHADOW_STACK
#define SENTINEL_VM_SHADOW_STACK VM_SHADOW_STACK
#else
#define SENTINEL_VM_SHADOW_STACK VM_NONE
#endif

#endif
