// SPDX-License-Identifier: GPL-2.0-only
/*
 * The areas (address ranges) of a session, and the state of their pages. A chunk holds the
 * state of 2 MiB (struct sentinel_chunk); it is allocated on demand.
 */
#include "sentinel.h"

#include <linux/slab.h>

/* Returns the table of areas; s->control is held, or the caller is the session's last user. */
struct sentinel_areas *sentinel_area_table(struct sentinel_session *s)
{
	return rcu_dereference_protected(s->areas, true);
}

/*
 * Returns the area that contains the address, or NULL; the caller holds the RCU read lock
 * or s->control.
 */
struct sentinel_area *sentinel_area_find(struct sentinel_session *s, unsigned long address)
{
	struct sentinel_areas *table =
		rcu_dereference_check(s->areas, lockdep_is_held(&s->control));
	unsigned int low = 0;
	unsigned int high = table ? table->count : 0;

	while (low < high) {
		unsigned int middle = (low + high) / 2;
		struct sentinel_area *area = table->area[middle];

		if (address < area->start)
			high = middle;
		else if (address >= area->end)
			low = middle + 1;
		else
			return area;
	}
	return NULL;
}

static void area_free(struct sentinel_area *area)
{
	unsigned long i;

	for (i = 0; i < area->chunk_count; i++)
		kfree(area->chunk[i]);
	kvfree(area->chunk);
	kvfree(area->active);
	kfree(area);
}

static struct sentinel_area *area_new(unsigned long start, unsigned long end)
{
	struct sentinel_area *area = kzalloc(sizeof(*area), GFP_KERNEL);

	if (!area)
		return NULL;
	area->start = start;
	area->end = end;
	area->chunk_count = sentinel_chunk_index(area, end - 1) + 1;
	area->chunk = kvcalloc(area->chunk_count, sizeof(*area->chunk), GFP_KERNEL_ACCOUNT);
	area->active = kvcalloc(BITS_TO_LONGS(area->chunk_count), sizeof(long), GFP_KERNEL_ACCOUNT);
	if (!area->chunk || !area->active) {
		kvfree(area->chunk);
		kvfree(area->active);
		kfree(area);
		return NULL;
	}
	return area;
}

/* Installs a new table of areas; s->control is held. */
static void replace_table(struct sentinel_session *s, struct sentinel_areas *table)
{
	struct sentinel_areas *old = sentinel_area_table(s);

	rcu_assign_pointer(s->areas, table);
	if (old)
		kfree_rcu(old, rcu);
}

int sentinel_area_add(struct sentinel_session *s, unsigned long start, unsigned long end)
{
	struct sentinel_areas *old = sentinel_area_table(s);
	unsigned int count = old ? old->count : 0;
	struct sentinel_areas *table;
	struct sentinel_area *area;
	u64 bytes = end - start;
	unsigned int i, at = 0;

	for (i = 0; i < count; i++) {
		if (start < old->area[i]->end && end > old->area[i]->start)
			return -EEXIST;
		if (old->area[i]->start < start)
			at = i + 1;
		bytes += old->area[i]->end - old->area[i]->start;
	}
	if (count == SENTINEL_AREAS_MAX)
		return -ENOSPC;
	if (bytes > SENTINEL_AREA_BYTES_MAX)
		return -E2BIG;

	table = kzalloc(struct_size(table, area, count + 1), GFP_KERNEL);
	area = area_new(start, end);
	if (!table || !area) {
		kfree(table);
		if (area)
			area_free(area);
		return -ENOMEM;
	}
	table->count = count + 1;
	for (i = 0; i < at; i++)
		table->area[i] = old->area[i];
	table->area[at] = area;
	for (i = at; i < count; i++)
		table->area[i + 1] = old->area[i];
	replace_table(s, table);
	return 0;
}

/*
 * Removes an area from the table and frees it. The caller has called
 * sentinel_epoch_settle() and holds s->control.
 */
void sentinel_area_drop(struct sentinel_session *s, struct sentinel_area *area)
{
	struct sentinel_areas *old = sentinel_area_table(s);
	struct sentinel_areas *table;
	unsigned int i;

	table = kzalloc(struct_size(table, area, old->count), GFP_KERNEL | __GFP_NOFAIL);
	for (i = 0; i < old->count; i++) {
		if (old->area[i] != area)
			table->area[table->count++] = old->area[i];
	}
	replace_table(s, table);
	synchronize_rcu();
	area_free(area);
}

/* Frees all areas of a session after sentinel_session_withdraw(). */
void sentinel_area_drop_all(struct sentinel_session *s)
{
	struct sentinel_areas *table = sentinel_area_table(s);
	unsigned int i;

	for (i = 0; table && i < table->count; i++)
		area_free(table->area[i]);
	RCU_INIT_POINTER(s->areas, NULL);
	kfree(table);
}

/*
 * Starts or stops watching the chunk's pages in [start, end); s->lock is held. Stopping
 * also clears the pages' suspect and lost bits (see struct sentinel_chunk).
 */
static void chunk_activate(struct sentinel_chunk *chunk, unsigned long start, unsigned long end,
			   bool active)
{
	unsigned long last = chunk->base + (1UL << SENTINEL_CHUNK_SHIFT);
	unsigned int nr;

	start = max(start, chunk->base);
	end = min(end, last);
	nr = sentinel_page_nr(start);
	if (active) {
		bitmap_set(chunk->active, nr, (end - start) >> PAGE_SHIFT);
	} else {
		bitmap_clear(chunk->active, nr, (end - start) >> PAGE_SHIFT);
		bitmap_clear(chunk->suspect, nr, (end - start) >> PAGE_SHIFT);
		bitmap_clear(chunk->lost, nr, (end - start) >> PAGE_SHIFT);
	}
}

/* Returns the chunk, and allocates it if needed; NULL if the allocation fails. */
struct sentinel_chunk *sentinel_chunk_get(struct sentinel_session *s, struct sentinel_area *area,
					  unsigned long index, gfp_t gfp)
{
	struct sentinel_chunk *chunk = sentinel_chunk_at(area, index);
	struct sentinel_chunk *made;

	if (chunk)
		return chunk;
	made = kzalloc(sizeof(*made), gfp);
	if (!made)
		return NULL;
	made->base = ((area->start >> SENTINEL_CHUNK_SHIFT) + index) << SENTINEL_CHUNK_SHIFT;
	INIT_LIST_HEAD(&made->dirty);

	spin_lock(&s->lock);
	chunk = area->chunk[index];
	if (!chunk) {
		chunk = made;
		made = NULL;
		if (test_bit(index, area->active))
			chunk_activate(chunk, area->start, area->end, true);
		/* pairs with sentinel_chunk_at() */
		smp_store_release(&area->chunk[index], chunk);
	}
	spin_unlock(&s->lock);
	kfree(made);
	return chunk;
}

/*
 * Allocates the chunk if [start, end) covers only a part of it. As long as a chunk is not
 * allocated, one bit in area->active applies to all of its pages.
 */
static int split_chunk(struct sentinel_session *s, struct sentinel_area *area, unsigned long start,
		       unsigned long end, unsigned long index)
{
	unsigned long base = ((area->start >> SENTINEL_CHUNK_SHIFT) + index)
			     << SENTINEL_CHUNK_SHIFT;

	if (start <= max(base, area->start) &&
	    end >= min(base + (1UL << SENTINEL_CHUNK_SHIFT), area->end))
		return 0;
	return sentinel_chunk_get(s, area, index, GFP_KERNEL_ACCOUNT) ? 0 : -ENOMEM;
}

/* Starts or stops watching [start, end), a part of the area; s->control is held. */
int sentinel_area_activate(struct sentinel_session *s, struct sentinel_area *area,
			   unsigned long start, unsigned long end, bool active)
{
	unsigned long first = sentinel_chunk_index(area, start);
	unsigned long last = sentinel_chunk_index(area, end - 1);
	unsigned long i;

	if (split_chunk(s, area, start, end, first) || split_chunk(s, area, start, end, last))
		return -ENOMEM;

	spin_lock(&s->lock);
	for (i = first; i <= last; i++) {
		if (area->chunk[i])
			chunk_activate(area->chunk[i], start, end, active);
		else if (active)
			__set_bit(i, area->active);
		else
			__clear_bit(i, area->active);
		if (i % 512 == 511) {
			/* page faults spin on this lock, so release it at intervals */
			spin_unlock(&s->lock);
			cond_resched();
			spin_lock(&s->lock);
		}
	}
	spin_unlock(&s->lock);
	return 0;
}
