// SPDX-License-Identifier: GPL-2.0-only
/*
 * Huge pages: one PMD entry maps a whole chunk (2 MiB of addresses, see sentinel.h). So the
 * chunk is armed as a whole, and an access counts for all of its pages. A chunk is armed only
 * if all of its pages are watched: otherwise accesses to unwatched pages would fault.
 */
#include "sentinel.h"

/*
 * Locks and returns the PMD entry of the address if the entry maps an anonymous huge page;
 * returns NULL otherwise. The caller has checked the VMA with sentinel_vma_fit(), and keeps it
 * alive: the caller holds mmap_lock or handles a fault in the VMA.
 */
pmd_t *sentinel_huge_lock(struct mm_struct *mm, unsigned long address, spinlock_t **ptl)
{
	unsigned long next;
	pmd_t *pmd = sentinel_pmd(mm, address, &next);
	pmd_t value;

	if (!pmd)
		return NULL;
	value = READ_ONCE(*pmd);
	if (!pmd_present(value) || !pmd_trans_huge(value))
		return NULL;
	*ptl = pmd_lock(mm, pmd);
	value = READ_ONCE(*pmd);
	if (pmd_present(value) && pmd_trans_huge(value) && PageAnon(pmd_page(value)))
		return pmd;
	spin_unlock(*ptl);
	return NULL;
}

/* Like sentinel_huge_lock(), but checks the chunk's VMA first; mmap_lock is held. */
pmd_t *sentinel_chunk_huge_lock(struct sentinel_session *s, struct sentinel_chunk *chunk,
				spinlock_t **ptl)
{
	struct vm_area_struct *vma = find_vma(s->mm, chunk->base);

	if (!vma || vma->vm_start > chunk->base || !sentinel_vma_fit(vma))
		return NULL;
	return sentinel_huge_lock(s->mm, chunk->base, ptl);
}

/* Undoes the bookkeeping of sentinel_huge_arm(); returns true if huge_armed was set. */
bool sentinel_huge_clear_armed(struct sentinel_session *s, struct sentinel_chunk *chunk)
{
	if (!chunk->huge_armed)
		return false;
	chunk->huge_armed = false;
	atomic_long_sub(SENTINEL_CHUNK_PAGES, &s->armed_pages);
	return true;
}

/*
 * Arms the chunk's huge page if all pages of the chunk are watched; the lock of pmd is held.
 * Returns true if the huge page is armed now and was not before.
 */
bool sentinel_huge_arm(struct sentinel_session *s, struct sentinel_chunk *chunk, pmd_t *pmd)
{
	bool changed;

	if (!bitmap_full(chunk->active, SENTINEL_CHUNK_PAGES))
		return false;
	changed = sentinel_entry_arm(&pmd->pmd, true);
	if (chunk->huge_armed)
		return changed;
	chunk->huge_armed = true;
	atomic_long_add(SENTINEL_CHUNK_PAGES, &s->armed_pages);
	return true;
}

/* Disarms the chunk's huge page; mmap_lock is held. Returns the number of pages disarmed. */
u64 sentinel_huge_disarm(struct sentinel_session *s, struct sentinel_chunk *chunk)
{
	spinlock_t *ptl;
	pmd_t *pmd;
	u64 done = 0;

	if (!READ_ONCE(chunk->huge_armed))
		return 0;
	pmd = sentinel_chunk_huge_lock(s, chunk, &ptl);
	if (!pmd)
		return 0;
	if (sentinel_huge_clear_armed(s, chunk) && pmd_protnone(READ_ONCE(*pmd))) {
		sentinel_entry_restore(find_vma(s->mm, chunk->base), &pmd->pmd, true, false, true);
		done = SENTINEL_CHUNK_PAGES;
	}
	spin_unlock(ptl);
	if (done) /* the whole huge page is disarmed now, including pages that are still watched */
		sentinel_note_unwatched(s, chunk, 0, SENTINEL_CHUNK_PAGES);
	return done;
}

/*
 * Handles a fault on the chunk's huge page; the lock of pmd is held. Returns true if the fault
 * is resolved.
 */
bool sentinel_huge_fault(struct sentinel_session *s, struct sentinel_chunk *chunk,
			 struct vm_area_struct *vma, pmd_t *pmd, unsigned int flags)
{
	bool write = flags & FAULT_FLAG_WRITE;
	bool was_armed = sentinel_huge_clear_armed(s, chunk);
	/* the bits used here have the same positions in a PMD entry and in a PTE */
	pte_t entry = __pte(pmd_val(READ_ONCE(*pmd)));

	sentinel_note_huge(s, chunk, was_armed, sentinel_node(pmd_page(READ_ONCE(*pmd))), write);
	if (pte_protnone(entry)) {
		if (!was_armed)
			return false; /* NUMA balancing made the entry PROT_NONE */
		entry = sentinel_entry_restore(vma, &pmd->pmd, true, true,
					       write || !s->precise_writes);
	} else if (write && s->precise_writes) {
		entry = sentinel_entry_restore(vma, &pmd->pmd, true, true, true);
	}
	if (flags & FAULT_FLAG_UNSHARE)
		return false;
	return !write || pte_write(entry);
}

/*
 * Examines a huge page at the end of the epoch and arms it again; the lock of pmd is held.
 * Returns true if the page was not armed before this call. In that case, if no access to the
 * page was noted, an access may have been missed. Sets *armed to true if this call armed the
 * page, else to false.
 */
bool sentinel_huge_settle(struct sentinel_session *s, struct sentinel_chunk *chunk, pmd_t *pmd,
			  bool *armed)
{
	bool missed = !pmd_protnone(READ_ONCE(*pmd)) || !chunk->huge_armed;

	if (missed)
		sentinel_huge_clear_armed(s, chunk);
	*armed = sentinel_huge_arm(s, chunk, pmd);
	return missed;
}
