// SPDX-License-Identifier: GPL-2.0-only
/* Functions for page tables and TLBs. They use only exported symbols. */
#include "sentinel.h"

#include <linux/pkeys.h>
#include <linux/smp.h>

/* Returns true if pages of the VMA may be armed: ordinary, accessible, anonymous memory. */
bool sentinel_vma_fit(struct vm_area_struct *vma)
{
	return vma_is_anonymous(vma) && vma_is_accessible(vma) && !vma_pkey(vma) &&
	       !(vma->vm_flags & (VM_IO | VM_PFNMAP | VM_MIXEDMAP | VM_HUGETLB |
				  SENTINEL_VM_SHADOW_STACK | SENTINEL_VM_UFFD_RWP));
}

/*
 * Returns the PMD entry that covers the address, or NULL if the address's entry at an
 * upper level is empty or refers to no page table. Sets *next to the end of the range that the
 * PMD entry or, without one, this upper-level entry covers.
 */
pmd_t *sentinel_pmd(struct mm_struct *mm, unsigned long address, unsigned long *next)
{
	pgd_t *pgd = pgd_offset(mm, address);
	p4d_t *p4d;
	pud_t *pud;
	pud_t pud_value;

	*next = (address & PGDIR_MASK) + PGDIR_SIZE;
	if (pgd_none(READ_ONCE(*pgd)))
		return NULL;
	p4d = p4d_offset(pgd, address);
	*next = (address & P4D_MASK) + P4D_SIZE;
	if (p4d_none(READ_ONCE(*p4d)))
		return NULL;
	pud = pud_offset(p4d, address);
	*next = (address & PUD_MASK) + PUD_SIZE;
	pud_value = READ_ONCE(*pud);
	if (!pud_present(pud_value) || pud_bad(pud_value))
		return NULL;
	*next = (address & PMD_MASK) + PMD_SIZE;
	return pmd_offset(pud, address);
}

/*
 * Locks the page table below the PMD entry and returns the address's PTE, or NULL
 * if there is no page table: the entry is empty or maps a huge page. khugepaged may
 * remove the table; RCU keeps the table's memory from being freed until the lock is
 * held. If the entry changed before the table was locked, reads the entry again: the
 * table may still be there, because MGLRU clears only the entry's accessed bit
 * (walk_pmd_range() in mm/vmscan.c).
 */
pte_t *sentinel_pte_lock(struct mm_struct *mm, pmd_t *pmd, unsigned long address, spinlock_t **ptl)
{
	pmd_t value;

again:
	rcu_read_lock();
	value = READ_ONCE(*pmd);
	if (!pmd_present(value) || pmd_leaf(value) || pmd_bad(value)) {
		rcu_read_unlock();
		return NULL;
	}
	*ptl = pte_lockptr(mm, &value);
	spin_lock(*ptl);
	rcu_read_unlock();
	if (unlikely(!pmd_same(value, READ_ONCE(*pmd)))) {
		spin_unlock(*ptl);
		goto again;
	}
	return pte_offset_kernel(&value, address);
}

/*
 * Locks the page table of a chunk (2 MiB of addresses, see sentinel.h) and returns the
 * table's first PTE, or NULL if there is no page table; mmap_lock is held for reading.
 * munmap() may free page tables at the same time, but only page tables that no VMA overlaps
 * any more.
 */
pte_t *sentinel_chunk_lock(struct sentinel_session *s, struct sentinel_chunk *chunk,
			   spinlock_t **ptl)
{
	struct vm_area_struct *vma = find_vma(s->mm, chunk->base);
	unsigned long end;
	pmd_t *pmd;

	if (!vma || vma->vm_start >= chunk->base + PMD_SIZE)
		return NULL;
	pmd = sentinel_pmd(s->mm, chunk->base, &end);
	return pmd ? sentinel_pte_lock(s->mm, pmd, chunk->base, ptl) : NULL;
}

/*
 * Returns the page of a PTE in a VMA for which sentinel_vma_fit() is true; NULL if the PTE
 * is special (zero page) or not present.
 */
struct page *sentinel_pte_page(pte_t pte)
{
	if (!pte_present(pte) || pte_special(pte))
		return NULL;
	return pte_page(pte);
}

/* Returns the entry of a small or huge page, with its protection replaced. */
static pte_t modified(pteval_t entry, bool huge, pgprot_t protection)
{
	if (huge) /* the bits used here have the same positions in a PMD entry and in a PTE */
		return __pte(pmd_val(pmd_modify(__pmd(entry), protection)));
	return pte_modify(__pte(entry), protection);
}

/* Arms a present entry; the page-table lock is held. Returns false if it is already PROT_NONE. */
bool sentinel_entry_arm(pteval_t *entry, bool huge)
{
	pteval_t old = READ_ONCE(*entry);

	do {
		if (pte_protnone(__pte(old)))
			return false;
		/* the CPU may set the accessed and dirty bits at any time: keep them */
	} while (!try_cmpxchg(entry, &old, pte_val(modified(old, huge, PAGE_NONE))));
	return true;
}

/* Does the same as the kernel's can_change_pte_writable(), which is not exported. */
static bool may_write(struct vm_area_struct *vma, pte_t entry, struct page *page)
{
	if (!(vma->vm_flags & VM_WRITE) || (vma->vm_flags & VM_SHARED))
		return false;
	if (IS_ENABLED(CONFIG_MEM_SOFT_DIRTY) && !(vma->vm_flags & VM_SOFTDIRTY) &&
	    !pte_soft_dirty(entry))
		return false;
	if (sentinel_pte_uffd(entry))
		return false;
	return PageAnon(page) && PageAnonExclusive(page);
}

/*
 * Restores an entry's protection from the VMA, read-only unless writable is set;
 * the page-table lock is held. No TLB flush is needed: TLBs do not cache non-present
 * entries, and a cached entry with too few permissions only causes another fault.
 */
pte_t sentinel_entry_restore(struct vm_area_struct *vma, pteval_t *entry, bool huge, bool accessed,
			     bool writable)
{
	pteval_t old = READ_ONCE(*entry);
	struct page *page = huge ? pmd_page(__pmd(old)) : pte_page(__pte(old));
	pte_t new;

	do {
		new = modified(old, huge, vma->vm_page_prot);
		if (accessed)
			new = pte_mkyoung(new);
		if (writable && may_write(vma, new, page))
			new = sentinel_pte_mkwrite(new);
	} while (!try_cmpxchg(entry, &old, pte_val(new)));
	return new;
}

static void flush_this_cpu(void *unused)
{
	sentinel_flush_this_cpu();
}

/*
 * Flushes the address space from all TLBs. CPUs that use the address space now are
 * interrupted. The other CPUs see the new TLB generation when they next switch to the
 * address space: see sentinel_tlb_cpus().
 */
void sentinel_flush_tlb(struct mm_struct *mm)
{
	atomic64_inc_return(&mm->context.tlb_gen);
	on_each_cpu_cond_mask(NULL, flush_this_cpu, NULL, true, sentinel_tlb_cpus(mm));
}
