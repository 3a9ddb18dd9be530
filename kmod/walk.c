// SPDX-License-Identifier: GPL-2.0-only
/* Walks over areas: arms and disarms pages, finds unarmed ones, and counts resident ones. */
#include "sentinel.h"

#include <linux/mm_inline.h>
#include <linux/nodemask.h>

/*
 * Arms one page, whose page-table lock is held; returns true if it was not armed before
 * and is armed now. The entry can be PROT_NONE already, because of NUMA balancing or
 * because the target was forked from an armed process. Then the page counts as armed,
 * because the next access to it faults, too.
 */
bool sentinel_arm_page(struct sentinel_session *s, struct sentinel_chunk *chunk, unsigned int nr,
		       pte_t *ptep)
{
	struct page *page = sentinel_pte_page(READ_ONCE(*ptep));
	bool changed;

	if (!page || !PageAnon(page))
		return false;
	changed = sentinel_entry_arm(&ptep->pte, false);
	if (test_and_set_bit(nr, chunk->armed))
		return changed;
	atomic_long_inc(&s->armed_pages);
	return true;
}

/*
 * See sentinel.h. If an entry of an upper page-table level is empty, skips the entry's whole range,
 * so the walk over a large untouched range is short.
 */
int sentinel_visit_tables(struct sentinel_session *s, struct sentinel_area *area,
			  unsigned long start, unsigned long end, sentinel_visit_t visit,
			  u64 *count)
{
	struct vm_area_struct *vma;
	unsigned long next;
	int ret;

	for (; start < end; start = next) {
		unsigned long stop;

		vma = find_vma(s->mm, start);
		if (!vma || vma->vm_start >= end)
			break;
		next = min(end, vma->vm_end);
		if (!sentinel_vma_fit(vma))
			continue;
		for (start = max(start, vma->vm_start); start < next; start = stop) {
			pmd_t *pmd = sentinel_pmd(s->mm, start, &stop);

			stop = min(stop, next);
			if (!pmd || pmd_none(READ_ONCE(*pmd)))
				continue;
			ret = visit(s, area, pmd, start, stop, count);
			if (ret)
				return ret;
			cond_resched();
		}
	}
	return 0;
}

struct arm_count {
	u64 armed;
	u64 settled; /* pages that were armed before, or that the next epoch will arm */
};

static void arm_huge(struct sentinel_session *s, struct sentinel_chunk *chunk, unsigned long start,
		     unsigned long end, struct arm_count *pages)
{
	unsigned int nr = sentinel_page_nr(start);
	unsigned int count = (end - start) >> PAGE_SHIFT;
	spinlock_t *ptl;
	pmd_t *pmd = sentinel_chunk_huge_lock(s, chunk, &ptl);
	bool armed = false, done = false;

	if (pmd) {
		if (test_bit(nr, chunk->touched))
			done = true;
		else
			armed = sentinel_huge_arm(s, chunk, pmd);
		done |= chunk->huge_armed;
		spin_unlock(ptl);
	}
	if (armed)
		pages->armed += count;
	else if (done)
		pages->settled += count;
	else
		sentinel_note_unwatched(s, chunk, nr, nr + count);
}

static int arm_table(struct sentinel_session *s, struct sentinel_area *area, pmd_t *pmd,
		     unsigned long start, unsigned long end, u64 *count)
{
	struct arm_count *pages = container_of(count, struct arm_count, armed);
	unsigned long index = sentinel_chunk_index(area, start);
	struct sentinel_chunk *chunk = sentinel_chunk_get(s, area, index, GFP_KERNEL_ACCOUNT);
	unsigned int nr = sentinel_page_nr(start);
	spinlock_t *ptl;
	pte_t *ptep;

	if (!chunk)
		return -ENOMEM;
	ptep = sentinel_pte_lock(s->mm, pmd, start, &ptl);
	if (!ptep) {
		arm_huge(s, chunk, start, end, pages);
		return 0;
	}
	for (; start < end; start += PAGE_SIZE, nr++, ptep++) {
		pte_t pte = READ_ONCE(*ptep);

		if (test_bit(nr, chunk->touched)) {
			pages->settled++;
			continue;
		}
		if (test_bit(nr, chunk->armed) && !pte_protnone(pte) && !pte_none(pte))
			sentinel_note_gap(s, chunk, nr);
		if (sentinel_arm_page(s, chunk, nr, ptep))
			pages->armed++;
		else if (test_bit(nr, chunk->armed))
			pages->settled++;
		else if (!pte_none(pte))
			sentinel_note_unwatched(s, chunk, nr, nr + 1);
	}
	spin_unlock(ptl);
	return 0;
}

/* Watches a part of the area and arms its pages; s->control and mmap_lock are held. */
int sentinel_arm(struct sentinel_session *s, struct sentinel_area *area,
		 struct sentinel_range *range)
{
	unsigned long start = range->start;
	unsigned long end = start + range->bytes;
	struct arm_count pages = {};
	int ret;

	ret = sentinel_area_activate(s, area, start, end, true);
	if (ret)
		return ret;
	inc_tlb_flush_pending(s->mm);
	ret = sentinel_visit_tables(s, area, start, end, arm_table, &pages.armed);
	if (pages.armed)
		sentinel_flush_tlb(s->mm);
	dec_tlb_flush_pending(s->mm);
	area->fresh_start = area->fresh_end ? min(area->fresh_start, start) : start;
	area->fresh_end = max(area->fresh_end, end);
	range->pages_done = pages.armed;
	range->pages_skipped = (range->bytes >> PAGE_SHIFT) - pages.armed - pages.settled;
	return ret;
}

static int find_unarmed_in_table(struct sentinel_session *s, struct sentinel_area *area, pmd_t *pmd,
				 unsigned long start, unsigned long end, u64 *count)
{
	unsigned long index = sentinel_chunk_index(area, start);
	struct sentinel_chunk *chunk;
	unsigned int nr = sentinel_page_nr(start);
	spinlock_t *ptl;
	pte_t *ptep;

	if (!area->chunk[index] && !test_bit(index, area->active))
		return 0;
	chunk = sentinel_chunk_get(s, area, index, GFP_KERNEL_ACCOUNT);
	if (!chunk)
		return -ENOMEM;
	ptep = sentinel_pte_lock(s->mm, pmd, start, &ptl);
	if (!ptep) {
		if (!READ_ONCE(chunk->huge_armed))
			sentinel_note_unwatched(s, chunk, nr, nr + ((end - start) >> PAGE_SHIFT));
		return 0;
	}
	for (; start < end; start += PAGE_SIZE, nr++, ptep++) {
		if (test_bit(nr, chunk->active) && !test_bit(nr, chunk->touched) &&
		    !test_bit(nr, chunk->armed) && sentinel_pte_page(READ_ONCE(*ptep)))
			sentinel_note_gap(s, chunk, nr);
	}
	spin_unlock(ptl);
	return 0;
}

/*
 * Finds pages that are present but not armed when the epoch ends. Such pages exist if
 * a fault passed the module's fault hook (hook.c) before its page was watched, and the
 * kernel mapped the page after the arming walk. s->control and mmap_lock are held.
 */
void sentinel_find_unarmed(struct sentinel_session *s, struct sentinel_area *area)
{
	u64 unused = 0;

	if (!area->fresh_end)
		return;
	if (sentinel_visit_tables(s, area, area->fresh_start, area->fresh_end,
				  find_unarmed_in_table, &unused))
		sentinel_note_lost(s);
	area->fresh_start = 0;
	area->fresh_end = 0;
}

/* Disarms a chunk's pages in [start, end) and returns their number; mmap_lock is held. */
static u64 disarm_chunk(struct sentinel_session *s, struct sentinel_chunk *chunk,
			unsigned long start, unsigned long end)
{
	unsigned int first = start > chunk->base ? sentinel_page_nr(start) : 0;
	unsigned int last = min((end - chunk->base) >> PAGE_SHIFT, SENTINEL_CHUNK_PAGES + 0UL);
	struct vm_area_struct *vma = NULL;
	unsigned int nr;
	spinlock_t *ptl;
	pte_t *table;
	u64 done = 0;

	done = sentinel_huge_disarm(s, chunk);
	if (find_next_bit(chunk->armed, last, first) >= last)
		return done;
	table = sentinel_chunk_lock(s, chunk, &ptl);
	for (nr = first; (nr = find_next_bit(chunk->armed, last, nr)) < last; nr++) {
		unsigned long address = chunk->base + ((unsigned long)nr << PAGE_SHIFT);

		sentinel_clear_armed(s, chunk, nr);
		if (!table || !pte_protnone(READ_ONCE(table[nr])))
			continue; /* something else unarmed the page */
		if (!vma || address >= vma->vm_end)
			vma = find_vma(s->mm, address);
		if (!vma || address < vma->vm_start || !sentinel_vma_fit(vma))
			continue; /* the mapping has changed, for example to PROT_NONE */
		sentinel_entry_restore(vma, &table[nr].pte, false, false, true);
		done++;
	}
	if (table)
		spin_unlock(ptl);
	return done;
}

static u64 disarm_part(struct sentinel_session *s, struct sentinel_area *area, unsigned long start,
		       unsigned long end)
{
	unsigned long last = sentinel_chunk_index(area, end - 1);
	unsigned long i;
	u64 done = 0;

	for (i = sentinel_chunk_index(area, start); i <= last; i++) {
		struct sentinel_chunk *chunk = sentinel_chunk_at(area, i);

		if (!chunk)
			continue;
		done += disarm_chunk(s, chunk, start, end);
		cond_resched();
	}
	return done;
}

/* Stops watching a part of the area and disarms it; s->control and mmap_lock are held. */
int sentinel_disarm(struct sentinel_session *s, struct sentinel_area *area,
		    struct sentinel_range *range)
{
	unsigned long end = range->start + range->bytes;
	u64 pages = range->bytes >> PAGE_SHIFT;
	int ret;

	ret = sentinel_area_activate(s, area, range->start, end, false);
	if (ret)
		return ret;
	/* a huge page is disarmed as a whole, even if it is only partly in the range */
	range->pages_done = min(disarm_part(s, area, range->start, end), pages);
	range->pages_skipped = pages - range->pages_done;
	return 0;
}

/* Disarms everything; allocates no memory, so it cannot fail. */
void sentinel_disarm_all(struct sentinel_session *s)
{
	struct sentinel_areas *table = sentinel_area_table(s);
	unsigned int i;

	for (i = 0; table && i < table->count; i++)
		disarm_part(s, table->area[i], table->area[i]->start, table->area[i]->end);
}

static int count_table(struct sentinel_session *s, struct sentinel_area *area, pmd_t *pmd,
		       unsigned long start, unsigned long end, u64 *count)
{
	pmd_t value = READ_ONCE(*pmd);
	spinlock_t *ptl;
	pte_t *ptep;

	if (pmd_present(value) && pmd_leaf(value)) {
		if (PageAnon(pmd_page(value)))
			count[page_to_nid(pmd_page(value))] += (end - start) >> PAGE_SHIFT;
		return 0;
	}
	ptep = sentinel_pte_lock(s->mm, pmd, start, &ptl);
	if (!ptep)
		return 0;
	for (; start < end; start += PAGE_SIZE, ptep++) {
		struct page *page = sentinel_pte_page(READ_ONCE(*ptep));

		if (page)
			count[page_to_nid(page)]++;
	}
	spin_unlock(ptl);
	return 0;
}

/* Counts the areas' resident pages into s->resident; s->control and mmap_lock are held. */
void sentinel_count_resident(struct sentinel_session *s)
{
	struct sentinel_areas *table = sentinel_area_table(s);
	unsigned int i;

	memset(s->resident, 0, nr_node_ids * sizeof(*s->resident));
	for (i = 0; table && i < table->count; i++)
		sentinel_visit_tables(s, table->area[i], table->area[i]->start, table->area[i]->end,
				      count_table, s->resident);
}
