// SPDX-License-Identifier: GPL-2.0-only
/* Page temperature: finds pages that the CPU has marked as accessed since the last AGE ioctl. */
#include "sentinel.h"

#include <linux/mm_inline.h>

/* Logs a run of accessed pages that are all on one node. */
static void record_aged(struct sentinel_session *s, unsigned long first, u64 pages, u8 node)
{
	spin_lock(&s->lock);
	sentinel_log_append(s, (struct sentinel_access){
				       .page = first >> PAGE_SHIFT,
				       .epoch = s->epoch,
				       .node = node,
				       .flags = SENTINEL_ACCESS_AGED,
				       .more_pages = pages - 1,
			       });
	spin_unlock(&s->lock);
}

static void age_huge(struct sentinel_session *s, unsigned long start, unsigned long end, u64 *count)
{
	u64 pages = (end - start) >> PAGE_SHIFT;
	spinlock_t *ptl;
	pmd_t *pmd = sentinel_huge_lock(s->mm, start, &ptl);

	if (!pmd)
		return;
	if (test_and_clear_bit(_PAGE_BIT_ACCESSED, (unsigned long *)&pmd->pmd)) {
		record_aged(s, start, pages, sentinel_node(pmd_page(READ_ONCE(*pmd))));
		*count += pages;
	}
	spin_unlock(ptl);
}

/*
 * Clears the accessed bit of an anonymous page and returns the page's node. Returns -1
 * if the bit was not set or the page is not anonymous.
 */
static int age_page(pte_t *ptep)
{
	struct page *page = sentinel_pte_page(READ_ONCE(*ptep));

	if (!page || !PageAnon(page) ||
	    !test_and_clear_bit(_PAGE_BIT_ACCESSED, (unsigned long *)&ptep->pte))
		return -1;
	return sentinel_node(page);
}

static int age_table(struct sentinel_session *s, struct sentinel_area *area, pmd_t *pmd,
		     unsigned long start, unsigned long end, u64 *count)
{
	unsigned long first = start;
	int run_node = -1;
	spinlock_t *ptl;
	pte_t *ptep;

	ptep = sentinel_pte_lock(s->mm, pmd, start, &ptl);
	if (!ptep) {
		age_huge(s, start, end, count);
		return 0;
	}
	for (; start <= end; start += PAGE_SIZE, ptep++) {
		int node = start < end ? age_page(ptep) : -1;

		if (node == run_node)
			continue;
		if (run_node >= 0) {
			record_aged(s, first, (start - first) >> PAGE_SHIFT, run_node);
			*count += (start - first) >> PAGE_SHIFT;
		}
		first = start;
		run_node = node;
	}
	spin_unlock(ptl);
	return 0;
}

/* Carries out AGE on a part of the area; s->control and mmap_lock are held. */
int sentinel_age(struct sentinel_session *s, struct sentinel_area *area,
		 struct sentinel_range *range)
{
	int ret;

	inc_tlb_flush_pending(s->mm);
	ret = sentinel_visit_tables(s, area, range->start, range->start + range->bytes, age_table,
				    &range->pages_done);
	/* the CPU sets accessed bits only on TLB misses; without a flush, hot pages look cold */
	if (range->pages_done)
		sentinel_flush_tlb(s->mm);
	dec_tlb_flush_pending(s->mm);
	range->pages_skipped = (range->bytes >> PAGE_SHIFT) - range->pages_done;
	return ret;
}
