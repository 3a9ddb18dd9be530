// SPDX-License-Identifier: GPL-2.0-only
/*
 * Measures access frequency within an epoch: touched pages are armed again every
 * rearm_us microseconds (struct sentinel_attach), so that the next access to each
 * of them adds a record.
 */
#include "sentinel.h"

#include <linux/mm_inline.h>
#include <linux/sched/mm.h>

/*
 * With precise writes (see struct sentinel_session), returns true if the page has no recorded
 * write, but may have been written without a fault. Without precise writes, returns false.
 */
static bool maybe_written(struct sentinel_session *s, struct sentinel_chunk *chunk, unsigned int nr,
			  bool writable)
{
	return s->precise_writes && writable && !test_bit(nr, chunk->written);
}

/*
 * Marks as lost (see struct sentinel_chunk) those pages of a huge page that are not recorded as
 * touched: while the huge page was not armed, all of its pages were accessible.
 */
static void note_untouched(struct sentinel_session *s, struct sentinel_chunk *chunk)
{
	DECLARE_BITMAP(untouched, SENTINEL_CHUNK_PAGES);

	spin_lock(&s->lock);
	bitmap_andnot(untouched, chunk->active, chunk->touched, SENTINEL_CHUNK_PAGES);
	bitmap_or(chunk->lost, chunk->lost, untouched, SENTINEL_CHUNK_PAGES);
	spin_unlock(&s->lock);
}

static u64 rearm_chunk(struct sentinel_session *s, struct sentinel_chunk *chunk)
{
	DECLARE_BITMAP(again, SENTINEL_CHUNK_PAGES);
	struct vm_area_struct *vma = NULL;
	unsigned int nr;
	spinlock_t *ptl;
	pte_t *table;
	pmd_t *huge;
	pte_t pte;
	u64 armed = 0;

	spin_lock(&s->lock);
	bitmap_and(again, chunk->touched, chunk->active, SENTINEL_CHUNK_PAGES);
	spin_unlock(&s->lock);
	if (bitmap_empty(again, SENTINEL_CHUNK_PAGES))
		return 0;
	huge = sentinel_chunk_huge_lock(s, chunk, &ptl);
	if (huge) {
		for_each_set_bit(nr, again, SENTINEL_CHUNK_PAGES)
			if (maybe_written(s, chunk, nr, pmd_write(READ_ONCE(*huge))))
				sentinel_note_gap(s, chunk, nr);
		armed = sentinel_huge_arm(s, chunk, huge);
		if (armed)
			note_untouched(s, chunk);
		spin_unlock(ptl);
		return armed;
	}
	table = sentinel_chunk_lock(s, chunk, &ptl);
	if (!table)
		return 0;
	for_each_set_bit(nr, again, SENTINEL_CHUNK_PAGES) {
		unsigned long address = chunk->base + ((unsigned long)nr << PAGE_SHIFT);

		if (!vma || address >= vma->vm_end)
			vma = find_vma(s->mm, address);
		if (!vma || address < vma->vm_start || !sentinel_vma_fit(vma))
			continue;
		pte = READ_ONCE(table[nr]);
		if (maybe_written(s, chunk, nr, pte_present(pte) && pte_write(pte)))
			sentinel_note_gap(s, chunk, nr);
		armed += sentinel_arm_page(s, chunk, nr, &table[nr]);
	}
	spin_unlock(ptl);
	return armed;
}

/* Re-arms the pages that were touched in this epoch; s->control and mmap_lock are held. */
static void rearm_touched(struct sentinel_session *s)
{
	struct sentinel_chunk *chunk;
	u64 armed = 0;
	LIST_HEAD(touched);

	/* chunk->queued stays true: only control operations clear it, and s->control is held */
	spin_lock(&s->lock);
	list_splice_init(&s->dirty, &touched);
	s->rearms++;
	spin_unlock(&s->lock);
	inc_tlb_flush_pending(s->mm);
	list_for_each_entry(chunk, &touched, dirty) {
		armed += rearm_chunk(s, chunk);
		cond_resched();
	}
	if (armed)
		sentinel_flush_tlb(s->mm);
	dec_tlb_flush_pending(s->mm);
	spin_lock(&s->lock);
	list_splice(&touched, &s->dirty);
	spin_unlock(&s->lock);
}

static void rearm(struct work_struct *work)
{
	struct sentinel_session *s = container_of(work, struct sentinel_session, rearm_work);

	/* skip the round if a lock is not free: the target can make the wait arbitrarily long */
	if (!mutex_trylock(&s->control))
		return;
	/* accesses before the first EPOCH belong to no stretch, so they need not be counted */
	if (s->epoch > 1 && mmget_not_zero(s->mm)) {
		if (mmap_read_trylock(s->mm)) {
			rearm_touched(s);
			mmap_read_unlock(s->mm);
		}
		mmput_async(s->mm);
	}
	mutex_unlock(&s->control);
}

static enum hrtimer_restart period_over(struct hrtimer *timer)
{
	struct sentinel_session *s = container_of(timer, struct sentinel_session, rearm_timer);

	/* s->lock is not needed: if this test misses a chunk, the next period's test finds it */
	if (!list_empty_careful(&s->dirty))
		sentinel_queue(&s->rearm_work);
	hrtimer_forward_now(timer, s->rearm_period);
	return HRTIMER_RESTART;
}

void sentinel_rearm_start(struct sentinel_session *s, u32 period_us)
{
	INIT_WORK(&s->rearm_work, rearm);
	sentinel_hrtimer_setup(&s->rearm_timer, period_over);
	s->rearm_period = ns_to_ktime((u64)period_us * NSEC_PER_USEC);
	if (period_us)
		hrtimer_start(&s->rearm_timer, s->rearm_period, HRTIMER_MODE_REL);
}

/* Stops the timer and waits for a re-arming in progress, which takes only a short time. */
void sentinel_rearm_stop(struct sentinel_session *s)
{
	hrtimer_cancel(&s->rearm_timer);
	cancel_work_sync(&s->rearm_work);
}
