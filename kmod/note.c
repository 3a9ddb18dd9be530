// SPDX-License-Identifier: GPL-2.0-only
/*
 * Notes accesses, and changes that may unarm pages; epoch.c evaluates the notes. In the module, a
 * chunk is 2 MiB of an address range that user space has added (sentinel.h).
 */
#include "sentinel.h"

#include "sentinel_trace.h"

/* Queues the chunk for examination when the next epoch begins; s->lock is held. */
void sentinel_chunk_queue(struct sentinel_session *s, struct sentinel_chunk *chunk)
{
	if (chunk->queued)
		return;
	chunk->queued = true;
	chunk->epoch = s->epoch;
	list_add_tail(&chunk->dirty, &s->dirty);
}

/*
 * Notes an access to a present page and completes the flags of the access record. The
 * record's epoch is the chunk's, not the session's: an access between the start of an
 * epoch and the re-arming of the chunk still belongs to the previous epoch. So in each
 * epoch, a page has at most one record without SENTINEL_ACCESS_AGAIN. Returns the
 * record's epoch, or 0 if nothing was recorded.
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
	/*
	 * log a further access only if the page was re-armed within the epoch or, with precise
	 * writes, if the access is the first write
	 */
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
 * Notes an access that the kernel is about to resolve (a first touch, or an access to a
 * page in swap or under migration). The page's node is not known yet, so the access is
 * recorded later.
 */
void sentinel_note_late(struct sentinel_session *s, struct sentinel_chunk *chunk, unsigned int nr,
			bool born, bool write)
{
	spin_lock(&s->lock);
	if (!test_bit(nr, chunk->active))
		goto out;
	/* even if the page was touched before, resolving this fault may map its neighbours */
	sentinel_chunk_queue(s, chunk);
	chunk->resolved = true;
	if (!__test_and_set_bit(nr, chunk->touched)) {
		__set_bit(nr, chunk->late);
		if (born) {
			__set_bit(nr, chunk->born);
			s->births++;
		} else {
			s->hits++;
		}
	}
	if (!write || __test_and_set_bit(nr, chunk->written))
		goto out;
	/* a read was logged already, so no late record follows: log this write now */
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

/* Notes that the kernel is about to resolve a fault and may thereby map pages of this chunk. */
void sentinel_note_resolved(struct sentinel_session *s, struct sentinel_chunk *chunk)
{
	spin_lock(&s->lock);
	if (!bitmap_empty(chunk->active, SENTINEL_CHUNK_PAGES)) {
		chunk->resolved = true;
		sentinel_chunk_queue(s, chunk);
	}
	spin_unlock(&s->lock);
}

/* Records an access that the kernel resolved; the page-table lock is held. */
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

/* Notes an access to a huge page: the access counts for all watched pages of the chunk. */
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

/*
 * Notes that pages first .. last - 1 may be accessible without a fault, so that they are
 * examined when the epoch ends.
 */
void sentinel_note_unwatched(struct sentinel_session *s, struct sentinel_chunk *chunk,
			     unsigned int first, unsigned int last)
{
	DECLARE_BITMAP(pages, SENTINEL_CHUNK_PAGES) = {};

	spin_lock(&s->lock);
	bitmap_set(pages, first, last - first);
	if (bitmap_and(pages, pages, chunk->active, SENTINEL_CHUNK_PAGES)) {
		bitmap_or(chunk->suspect, chunk->suspect, pages, SENTINEL_CHUNK_PAGES);
		sentinel_chunk_queue(s, chunk);
	}
	spin_unlock(&s->lock);
}

/* Notes that a page was unarmed for some time: an access may have been missed. */
void sentinel_note_gap(struct sentinel_session *s, struct sentinel_chunk *chunk, unsigned int nr)
{
	spin_lock(&s->lock);
	__set_bit(nr, chunk->suspect);
	__set_bit(nr, chunk->lost);
	sentinel_chunk_queue(s, chunk);
	spin_unlock(&s->lock);
}

/* Notes that code outside this module begins to change the mapping of [start, end). */
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

/* Returns how many changes in progress may affect pages of [start, end); s->lock is held. */
unsigned int sentinel_changes(struct sentinel_session *s, unsigned long start, unsigned long end)
{
	unsigned int i, count = s->more_changes;

	lockdep_assert_held(&s->lock);
	for (i = 0; i < s->changes; i++)
		count += s->change[i].start < end && start < s->change[i].end;
	return count;
}

/*
 * Returns true if an access through this entry is possible without a fault, now or
 * later. If the page was touched in this epoch, returns true only if a write is possible
 * without a fault. The entry of a page in swap or under migration can become present
 * without a fault. The page-table lock is held.
 */
static bool may_pass_unseen(const struct sentinel_chunk *chunk, unsigned int nr, pte_t pte)
{
	if (pte_none(pte))
		return false;
	if (test_bit(nr, chunk->touched))
		return !pte_present(pte) || pte_write(pte);
	return !pte_protnone(pte) || !test_bit(nr, chunk->armed);
}

/*
 * Before the mapping of pages changes, marks as lost the pages that may have been accessed
 * without a fault: after the change, their entries may no longer show this. A page's entry
 * shows whether an earlier change unarmed the page, but only if that change has ended. So if
 * more than one change of these pages is in progress (overlap), marks all suspect pages.
 * table is NULL if there is no page table: the chunk is unmapped, or mapped by a huge page.
 * s->lock and the page-table lock are held.
 */
static void look_before_change(struct sentinel_chunk *chunk, const unsigned long *pages,
			       const pte_t *table, bool huge, bool overlap)
{
	unsigned int nr;

	for_each_set_bit(nr, pages, SENTINEL_CHUNK_PAGES) {
		bool suspect = test_bit(nr, chunk->suspect);

		/*
		 * a fault that the kernel resolved may have mapped neighbours of the accessed
		 * page, too, without arming them; so if there was such a fault, look at all pages
		 */
		if (!suspect && !chunk->resolved)
			continue;
		if ((suspect && overlap) || huge ||
		    (table && may_pass_unseen(chunk, nr, READ_ONCE(table[nr]))))
			__set_bit(nr, chunk->lost);
	}
}

/*
 * Removes the pending late record of a page and returns the record's epoch and flags. Called
 * before the page is unmapped, while the page's node can still be read. Returns false if no
 * late record is pending.
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

/* Writes the pending late records of pages first .. last - 1; their page-table lock is held. */
static void record_before_change(struct sentinel_session *s, struct sentinel_chunk *chunk,
				 unsigned int first, unsigned int last, const pte_t *table)
{
	unsigned int nr;

	for (nr = first; nr < last; nr++) {
		struct page *page;
		u32 epoch;
		u8 flags;

		/*
		 * s->lock is not held, so the bit may be set after this test. Then the access
		 * is recorded at the end of the epoch.
		 */
		if (!test_bit(nr, chunk->late))
			continue;
		page = sentinel_pte_page(READ_ONCE(table[nr]));
		if (page && take_late(s, chunk, nr, &epoch, &flags))
			sentinel_record_late(s, chunk->base + ((unsigned long)nr << PAGE_SHIFT),
					     epoch, page, flags);
	}
}

/*
 * Notes that code outside this module is about to change the mapping of pages
 * first .. last - 1. During this call, that code keeps the page table from being freed.
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
	bool overlap;
	pmd_t *pmd;
	bool huge;

	pmd = sentinel_pmd(s->mm, start, &next);
	if (pmd)
		table = sentinel_pte_lock(s->mm, pmd, chunk->base, &ptl);
	huge = !table && pmd && !pmd_none(READ_ONCE(*pmd));
	if (table && kind != SENTINEL_CHANGE_PROTECTS)
		record_before_change(s, chunk, first, last, table);

	spin_lock(&s->lock);
	bitmap_copy(pages, chunk->touched, SENTINEL_CHUNK_PAGES);
	if (s->precise_writes)
		bitmap_and(pages, pages, chunk->written, SENTINEL_CHUNK_PAGES);
	bitmap_andnot(pages, chunk->active, pages, SENTINEL_CHUNK_PAGES);
	bitmap_clear(pages, 0, first);
	bitmap_clear(pages, last, SENTINEL_CHUNK_PAGES - last);
	if (kind == SENTINEL_CHANGE_PROTECTS) {
		/* a write can have been missed only if the page was read and is writable */
		bitmap_and(pages, pages, chunk->touched, SENTINEL_CHUNK_PAGES);
		look_before_change(chunk, pages, table, huge, false);
	} else if (!bitmap_empty(pages, SENTINEL_CHUNK_PAGES)) {
		if (kind == SENTINEL_CHANGE_MAPS)
			bitmap_or(chunk->lost, chunk->lost, pages, SENTINEL_CHUNK_PAGES);
		overlap = sentinel_changes(s, start, end) > 1;
		look_before_change(chunk, pages, table, huge, overlap);
		bitmap_or(chunk->suspect, chunk->suspect, pages, SENTINEL_CHUNK_PAGES);
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

		/*
		 * None of a chunk's watched pages is mapped before the chunk's structure is
		 * allocated. So allocate it here only for a change that maps pages.
		 */
		if (!chunk && kind == SENTINEL_CHANGE_MAPS && test_bit(i, area->active)) {
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

/* Notes that code outside this module is about to change the mapping of [start, end). */
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
