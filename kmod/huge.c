// SPDX-License-Identifier: GPL-2.0-only
/*
 * Huge pages: one PMD entry maps a whole chunk, is armed as a whole and hit as
 * a whole. Only where all of the chunk is watched: else pages that nobody asked
 * for would fault.
 */
#include "sentinel.h"

/*
 * Locks the chunk's PMD entry where it maps an anonymous huge page; NULL
 * otherwise. The VMA is fit; mmap_lock or a fault in the VMA keeps it.
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

/* The same for a chunk whose VMA may be any; mmap_lock is held. */
pmd_t *sentinel_chunk_huge_lock(struct sentinel_session *s, struct sentinel_chunk *chunk,
				spinlock_t **ptl)
{
	struct vm_area_struct *vma = find_vma(s->mm, chunk->base);

	if (!vma || vma->vm_start > chunk->base || !sentinel_vma_fit(vma))
		return NULL;
	return sentinel_huge_lock(s->mm, chunk->base, ptl);
}

static bool clear_armed(struct sentinel_session *s, struct sentinel_chunk *chunk)
{
	if (!chunk->huge_armed)
		return false;
	chunk->huge_armed = false;
	atomic_long_sub(SENTINEL_CHUNK_PAGES, &s->armed_pages);
	return true;
}

/* Arms the chunk's huge page, whose lock is held; true when it is armed only now. */
bool sentinel_huge_arm(struct sentinel_session *s, struct sentinel_chunk *chunk, pmd_t *pmd)
{
	pmd_t old = READ_ONCE(*pmd);
	bool changed = false;

	if (!bitmap_full(chunk->active, SENTINEL_CHUNK_PAGES))
		return false;
	while (!pmd_protnone(old)) {
		changed = try_cmpxchg(&pmd->pmd, &old.pmd, pmd_modify(old, PAGE_NONE).pmd);
		if (changed)
			break;
	}
	if (chunk->huge_armed)
		return changed;
	chunk->huge_armed = true;
	atomic_long_add(SENTINEL_CHUNK_PAGES, &s->armed_pages);
	return true;
}

/* As may_write() of pgtable.c. */
static bool may_write(struct vm_area_struct *vma, pmd_t pmd)
{
	if (!(vma->vm_flags & VM_WRITE) || (vma->vm_flags & VM_SHARED) || pmd_uffd_wp(pmd))
		return false;
	if (IS_ENABLED(CONFIG_MEM_SOFT_DIRTY) && !(vma->vm_flags & VM_SOFTDIRTY) &&
	    !pmd_soft_dirty(pmd))
		return false;
	return PageAnonExclusive(pmd_page(pmd));
}

static pmd_t restore(struct vm_area_struct *vma, pmd_t *pmd, bool accessed, bool writable)
{
	pmd_t old = READ_ONCE(*pmd);
	pmd_t new;

	do {
		new = pmd_modify(old, vma->vm_page_prot);
		if (accessed)
			new = pmd_mkyoung(new);
		if (writable && may_write(vma, new))
			new = sentinel_pmd_mkwrite(new);
	} while (!try_cmpxchg(&pmd->pmd, &old.pmd, new.pmd));
	return new;
}

/* Gives the chunk's huge page back where it is armed; mmap_lock is held. Pages disarmed. */
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
	if (clear_armed(s, chunk) && pmd_protnone(READ_ONCE(*pmd))) {
		restore(find_vma(s->mm, chunk->base), pmd, false, true);
		done = SENTINEL_CHUNK_PAGES;
	}
	spin_unlock(ptl);
	if (done) /* what is still watched of it cannot be armed alone */
		sentinel_note_unwatched(s, chunk, 0, SENTINEL_CHUNK_PAGES);
	return done;
}

/* A fault at the chunk's huge page, whose lock is held; true when it is resolved. */
bool sentinel_huge_fault(struct sentinel_session *s, struct sentinel_chunk *chunk,
			 struct vm_area_struct *vma, pmd_t *pmd, unsigned int flags)
{
	bool write = flags & FAULT_FLAG_WRITE;
	bool was_armed = clear_armed(s, chunk);
	pmd_t entry = READ_ONCE(*pmd);

	sentinel_note_huge(s, chunk, was_armed, sentinel_node(pmd_page(entry)), write);
	if (pmd_protnone(entry)) {
		if (!was_armed)
			return false; /* NUMA balancing's own */
		entry = restore(vma, pmd, true, write || !s->precise_writes);
	} else if (write && s->precise_writes) {
		entry = restore(vma, pmd, true, true);
	}
	if (flags & FAULT_FLAG_UNSHARE)
		return false;
	return !write || pmd_write(entry);
}

/*
 * Looks at a huge page at its epoch's end and arms it again; its lock is held.
 * True when a first access may have been missed; *armed when it was armed.
 */
bool sentinel_huge_settle(struct sentinel_session *s, struct sentinel_chunk *chunk, pmd_t *pmd,
			  bool *armed)
{
	bool missed = !pmd_protnone(READ_ONCE(*pmd)) || !chunk->huge_armed;

	if (missed)
		clear_armed(s, chunk);
	*armed = sentinel_huge_arm(s, chunk, pmd);
	return missed;
}

/* The chunk is in small pages (again), or nothing is there. */
void sentinel_huge_forget(struct sentinel_session *s, struct sentinel_chunk *chunk)
{
	clear_armed(s, chunk);
}
