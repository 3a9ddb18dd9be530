// SPDX-License-Identifier: GPL-2.0-only
/* What an epoch is told of a page: it was accessed, or its arming may have been taken. */
#include "sentinel.h"

#include "sentinel_trace.h"

/* Has the next epoch advance look at the chunk; s->lock is held. */
void sentinel_chunk_queue(struct sentinel_session *s, struct sentinel_chunk *chunk)
{
	if (chunk->queued)
		return;
	chunk->queued = true;
	chunk->epoch = s->epoch;
	list_add_tail(&chunk->dirty, &s->dirty);
}

/*
 * Notes an access to a present page and completes its flags. The epoch is the
 * chunk's, not the session's: an access that comes between the start of an epoch
 * and the chunk's turn in re-arming still belongs to the ended one, so that no
 * page is recorded twice in one. Returns the record's epoch, 0 when nothing was
 * to be recorded.
 */
u32 sentinel_note_hit(struct sentinel_session *s, struct sentinel_chunk *chunk, unsigned int nr,
		      bool was_armed, u8 node, u8 *flags)
{
	bool first, first_write;
	u32 epoch = 0;

	spin_lock(&s->lock);
	if (!test_bit(nr, chunk->active))
		goto out;
	first = !__test_and_set_bit(nr, chunk->touched);
	first_write = (*flags & SENTINEL_ACCESS_WRITE) && !__test_and_set_bit(nr, chunk->written);
	/* armed although touched: by a round of re-arming, or it was hit while its epoch began */
	if (!first && !(was_armed && s->rearm_period) && !(first_write && s->precise_writes))
		goto out;
	sentinel_chunk_queue(s, chunk);
	epoch = chunk->epoch;
	if (first)
		s->hits++;
	else
		*flags |= SENTINEL_ACCESS_AGAIN;
	sentinel_log_append(s, (struct sentinel_access){
				       .page = (chunk->base >> PAGE_SHIFT) + nr,
				       .epoch = epoch,
				       .node = node,
				       .flags = *flags,
			       });
out:
	spin_unlock(&s->lock);
	return epoch;
}

/*
 * Notes an access that the kernel is about to resolve (a first touch, a page
 * in swap or under migration): its node is not known before the epoch ends.
 */
void sentinel_note_late(struct sentinel_session *s, struct sentinel_chunk *chunk, unsigned int nr,
			bool born, bool write)
{
	spin_lock(&s->lock);
	if (!test_bit(nr, chunk->active))
		goto out;
	if (!__test_and_set_bit(nr, chunk->touched)) {
		sentinel_chunk_queue(s, chunk);
		__set_bit(nr, chunk->late);
		chunk->resolved = true;
		if (born) {
			__set_bit(nr, chunk->born);
			s->births++;
		} else {
			s->hits++;
		}
	}
	if (!write || __test_and_set_bit(nr, chunk->written))
		goto out;
	/* read and recorded, then unmapped: no record to come will tell of the write */
	if (s->precise_writes && !test_bit(nr, chunk->late))
		sentinel_log_append(s,
				    (struct sentinel_access){
					    .page = (chunk->base >> PAGE_SHIFT) + nr,
					    .epoch = chunk->epoch,
					    .node = SENTINEL_NODE_UNKNOWN,
					    .flags = SENTINEL_ACCESS_WRITE | SENTINEL_ACCESS_AGAIN,
				    });
out:
	spin_unlock(&s->lock);
}

/* The record of an access that the kernel had resolved; the page-table lock is held. */
void sentinel_record_late(struct sentinel_session *s, unsigned long address, u32 epoch,
			  struct page *page, u8 flags)
{
	u8 node = page ? sentinel_node(page) : SENTINEL_NODE_UNKNOWN;

	spin_lock(&s->lock);
	sentinel_log_append(s, (struct sentinel_access){
				       .page = address >> PAGE_SHIFT,
				       .epoch = epoch,
				       .node = node,
				       .flags = flags,
			       });
	spin_unlock(&s->lock);
	trace_page_access(s->tgid, address, epoch, node, flags);
}

/* Notes an access to a huge page, which is one to all watched pages of the chunk. */
void sentinel_note_huge(struct sentinel_session *s, struct sentinel_chunk *chunk, bool was_armed,
			u8 node, bool write)
{
	DECLARE_BITMAP(pages, SENTINEL_CHUNK_PAGES);
	u8 flags = write ? SENTINEL_ACCESS_WRITE : 0;
	unsigned int first, last;

	spin_lock(&s->lock);
	bitmap_andnot(pages, chunk->active, chunk->touched, SENTINEL_CHUNK_PAGES);
	if (bitmap_empty(pages, SENTINEL_CHUNK_PAGES)) {
		bitmap_andnot(pages, chunk->active, chunk->written, SENTINEL_CHUNK_PAGES);
		if (was_armed && s->rearm_period)
			bitmap_copy(pages, chunk->active, SENTINEL_CHUNK_PAGES);
		else if (!write || !s->precise_writes)
			bitmap_zero(pages, SENTINEL_CHUNK_PAGES);
		flags |= SENTINEL_ACCESS_AGAIN;
	}
	bitmap_or(chunk->touched, chunk->touched, pages, SENTINEL_CHUNK_PAGES);
	if (write)
		bitmap_or(chunk->written, chunk->written, pages, SENTINEL_CHUNK_PAGES);
	for_each_set_bitrange(first, last, pages, SENTINEL_CHUNK_PAGES) {
		sentinel_chunk_queue(s, chunk);
		s->hits++;
		sentinel_log_append(s, (struct sentinel_access){
					       .page = (chunk->base >> PAGE_SHIFT) + first,
					       .epoch = chunk->epoch,
					       .node = node,
					       .flags = flags,
					       .more_pages = last - first - 1,
				       });
	}
	spin_unlock(&s->lock);
}

void sentinel_note_passed_on(struct sentinel_session *s)
{
	spin_lock(&s->lock);
	s->passed_on++;
	spin_unlock(&s->lock);
}

/* Pages first .. last - 1, where watched, are not absent and not armed: the next epoch looks. */
void sentinel_note_unwatched(struct sentinel_session *s, struct sentinel_chunk *chunk,
			     unsigned int first, unsigned int last)
{
	DECLARE_BITMAP(pages, SENTINEL_CHUNK_PAGES) = {};

	spin_lock(&s->lock);
	bitmap_set(pages, first, last - first);
	if (bitmap_and(pages, pages, chunk->active, SENTINEL_CHUNK_PAGES)) {
		bitmap_or(chunk->shaken, chunk->shaken, pages, SENTINEL_CHUNK_PAGES);
		sentinel_chunk_queue(s, chunk);
	}
	spin_unlock(&s->lock);
}

/* A page is being armed that was armed before: in between an access may have been missed. */
void sentinel_note_gap(struct sentinel_session *s, struct sentinel_chunk *chunk, unsigned int nr)
{
	spin_lock(&s->lock);
	__set_bit(nr, chunk->shaken);
	__set_bit(nr, chunk->lost);
	sentinel_chunk_queue(s, chunk);
	spin_unlock(&s->lock);
}

void sentinel_change_begin(struct sentinel_session *s, unsigned long start, unsigned long end)
{
	const struct sentinel_change change = {
		.start = start,
		.end = end,
	};

	spin_lock(&s->lock);
	if (s->changes < SENTINEL_CHANGES_KEPT)
		s->change[s->changes++] = change;
	else
		s->more_changes++;
	spin_unlock(&s->lock);
}

void sentinel_change_end(struct sentinel_session *s, unsigned long start, unsigned long end)
{
	unsigned int i = 0;

	spin_lock(&s->lock);
	while (i < s->changes && (s->change[i].start != start || s->change[i].end != end))
		i++;
	if (i < s->changes)
		s->change[i] = s->change[--s->changes];
	else
		s->more_changes--;
	spin_unlock(&s->lock);
}

/* How many changes of [start, end) may be under way; s->lock is held. */
unsigned int sentinel_changes(struct sentinel_session *s, unsigned long start, unsigned long end)
{
	unsigned int i, count = s->more_changes;

	lockdep_assert_held(&s->lock);
	for (i = 0; i < s->changes; i++)
		count += s->change[i].start < end && start < s->change[i].end;
	return count;
}

/*
 * Whether an access (to a page that was read, a write) passes an entry without a
 * fault, or will: an entry in swap or under migration may come back by itself.
 * The page-table lock is held.
 */
static bool lets_pass(const struct sentinel_chunk *chunk, unsigned int nr, pte_t pte)
{
	if (pte_none(pte))
		return false;
	if (test_bit(nr, chunk->touched))
		return !pte_present(pte) || pte_write(pte);
	return !pte_protnone(pte) || !test_bit(nr, chunk->armed);
}

/*
 * Pages are about to be changed: notes those that may have been accessed without
 * a fault, as the change may hide that. A page's entry shows whether the change
 * before this one un-armed it; not so while two are under way at once (crowded).
 * table is NULL where no page table is: nothing is there, or a huge page.
 * s->lock and the page table's lock are held.
 */
static void look_before_change(struct sentinel_chunk *chunk, const unsigned long *pages,
			       const pte_t *table, bool huge, bool crowded)
{
	unsigned int nr;

	for_each_set_bit(nr, pages, SENTINEL_CHUNK_PAGES) {
		bool shaken = test_bit(nr, chunk->shaken);

		/* one fault may have populated more than its own page: nobody armed those */
		if (!shaken && !chunk->resolved)
			continue;
		if ((shaken && crowded) || huge ||
		    (table && lets_pass(chunk, nr, READ_ONCE(table[nr]))))
			__set_bit(nr, chunk->lost);
	}
}

/*
 * A page that was born is about to go: takes what its record says, with the node
 * that only now can be told. False when no record waits.
 */
static bool take_late(struct sentinel_session *s, struct sentinel_chunk *chunk, unsigned int nr,
		      u32 *epoch, u8 *flags)
{
	bool late;

	spin_lock(&s->lock);
	late = __test_and_clear_bit(nr, chunk->late);
	*epoch = chunk->epoch;
	*flags = sentinel_late_flags(chunk->born, chunk->written, nr);
	spin_unlock(&s->lock);
	return late;
}

/* Records what waits for pages first .. last - 1; their page table's lock is held. */
static void record_before_change(struct sentinel_session *s, struct sentinel_chunk *chunk,
				 unsigned int first, unsigned int last, const pte_t *table)
{
	unsigned int nr;

	for (nr = first; nr < last; nr++) {
		struct page *page;
		u32 epoch;
		u8 flags;

		/* without the lock: what is set meanwhile is recorded when the epoch ends */
		if (!test_bit(nr, chunk->late))
			continue;
		page = sentinel_pte_page(READ_ONCE(table[nr]));
		if (page && take_late(s, chunk, nr, &epoch, &flags))
			sentinel_record_late(s, chunk->base + ((unsigned long)nr << PAGE_SHIFT),
					     epoch, page, flags);
	}
}

/*
 * Somebody else is about to change the mapping of pages first .. last - 1, and
 * keeps their page table from going away.
 */
static void note_change(struct sentinel_session *s, struct sentinel_chunk *chunk,
			unsigned int first, unsigned int last, enum sentinel_change_kind kind)
{
	unsigned long start = chunk->base + ((unsigned long)first << PAGE_SHIFT);
	unsigned long end = chunk->base + ((unsigned long)last << PAGE_SHIFT);
	DECLARE_BITMAP(pages, SENTINEL_CHUNK_PAGES);
	pte_t *table = NULL;
	unsigned long next;
	spinlock_t *ptl;
	bool crowded;
	pmd_t *pmd;
	bool huge;

	pmd = sentinel_pmd(s->mm, start, &next);
	if (pmd)
		table = sentinel_pte_lock(s->mm, pmd, chunk->base, &ptl);
	huge = !table && pmd && !pmd_none(READ_ONCE(*pmd));
	if (table && kind != SENTINEL_PROTECTS)
		record_before_change(s, chunk, first, last, table);

	spin_lock(&s->lock);
	bitmap_copy(pages, chunk->touched, SENTINEL_CHUNK_PAGES);
	if (s->precise_writes)
		bitmap_and(pages, pages, chunk->written, SENTINEL_CHUNK_PAGES);
	bitmap_andnot(pages, chunk->active, pages, SENTINEL_CHUNK_PAGES);
	bitmap_clear(pages, 0, first);
	bitmap_clear(pages, last, SENTINEL_CHUNK_PAGES - last);
	if (kind == SENTINEL_PROTECTS) {
		/* of a page that was read, the right to write tells of a write to come or gone */
		bitmap_and(pages, pages, chunk->touched, SENTINEL_CHUNK_PAGES);
		look_before_change(chunk, pages, table, huge, false);
	} else if (!bitmap_empty(pages, SENTINEL_CHUNK_PAGES)) {
		if (kind == SENTINEL_BRINGS)
			bitmap_or(chunk->lost, chunk->lost, pages, SENTINEL_CHUNK_PAGES);
		crowded = sentinel_changes(s, start, end) > 1;
		look_before_change(chunk, pages, table, huge, crowded);
		bitmap_or(chunk->shaken, chunk->shaken, pages, SENTINEL_CHUNK_PAGES);
		sentinel_chunk_queue(s, chunk);
	}
	spin_unlock(&s->lock);
	if (table)
		spin_unlock(ptl);
}

static void note_change_of_area(struct sentinel_session *s, struct sentinel_area *area,
				unsigned long start, unsigned long end,
				enum sentinel_change_kind kind)
{
	unsigned long last = sentinel_chunk_index(area, end - 1);
	unsigned long i;

	for (i = sentinel_chunk_index(area, start); i <= last; i++) {
		struct sentinel_chunk *chunk = sentinel_chunk_at(area, i);
		unsigned long base;

		/* where no chunk is, no page is; pages that come without a fault need one now */
		if (!chunk && kind == SENTINEL_BRINGS && test_bit(i, area->active)) {
			chunk = sentinel_chunk_get(s, area, i, GFP_NOWAIT | __GFP_NOWARN);
			if (!chunk)
				sentinel_note_lost(s);
		}
		if (!chunk)
			continue;
		base = chunk->base;
		note_change(s, chunk, start > base ? sentinel_page_nr(start) : 0,
			    min((end - base) >> PAGE_SHIFT, SENTINEL_CHUNK_PAGES + 0UL), kind);
	}
}

/* Somebody else is about to change the mapping of [start, end). */
void sentinel_note_change(struct sentinel_session *s, unsigned long start, unsigned long end,
			  enum sentinel_change_kind kind)
{
	struct sentinel_areas *table;
	unsigned int i;

	rcu_read_lock();
	table = rcu_dereference(s->areas);
	for (i = 0; table && i < table->count && table->area[i]->start < end; i++) {
		struct sentinel_area *area = table->area[i];

		if (start < area->end)
			note_change_of_area(s, area, max(start, area->start), min(end, area->end),
					    kind);
	}
	rcu_read_unlock();
}
