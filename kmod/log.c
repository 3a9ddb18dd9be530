// SPDX-License-Identifier: GPL-2.0-only
/* The access log that user space maps, and the rules by which an access becomes a record. */
#include "sentinel.h"

#include <linux/log2.h>
#include <linux/vmalloc.h>

#include "sentinel_trace.h"

#define LOG_RECORDS_MIN 4096
#define LOG_RECORDS_MAX (1 << 24)

static_assert(sizeof(struct sentinel_access) == 16);
static_assert(sizeof(struct sentinel_log) <= SENTINEL_LOG_OFFSET);
static_assert(SENTINEL_LOG_OFFSET == PAGE_SIZE);

static size_t log_bytes(u64 records)
{
	return SENTINEL_LOG_OFFSET + records * sizeof(struct sentinel_access);
}

int sentinel_log_create(struct sentinel_session *s, u64 records)
{
	if (records < LOG_RECORDS_MIN || records > LOG_RECORDS_MAX || !is_power_of_2(records))
		return -EINVAL;
	s->log = vmalloc_user(log_bytes(records));
	if (!s->log)
		return -ENOMEM;
	s->records = (void *)s->log + SENTINEL_LOG_OFFSET;
	s->record_count = records;
	s->log->records = records;
	s->log->record_bytes = sizeof(struct sentinel_access);
	s->log->epoch = s->epoch;
	return 0;
}

void sentinel_log_free(struct sentinel_session *s)
{
	vfree(s->log);
	s->log = NULL;
}

int sentinel_log_mmap(struct sentinel_session *s, struct vm_area_struct *vma)
{
	if (!(vma->vm_flags & VM_SHARED) || vma->vm_pgoff ||
	    vma->vm_end - vma->vm_start > log_bytes(s->record_count))
		return -EINVAL;
	return remap_vmalloc_range(vma, s->log, 0);
}

/*
 * Appends a record; s->lock is held. The reader's tail comes from user space:
 * whatever it says, at most record_count records are outstanding, and a value
 * out of bounds only makes the log look full.
 */
void sentinel_log_append(struct sentinel_session *s, u64 page, u32 epoch, u8 node, u8 flags)
{
	lockdep_assert_held(&s->lock);
	if (s->head - READ_ONCE(s->log->tail) >= s->record_count) {
		WRITE_ONCE(s->log->lost, ++s->lost);
		return;
	}
	s->records[s->head & (s->record_count - 1)] = (struct sentinel_access){
		.page = page,
		.epoch = epoch,
		.node = node,
		.flags = flags,
	};
	smp_store_release(&s->log->head, ++s->head);
}

/* Has the next epoch advance look at the chunk; s->lock is held. */
static void queue_chunk(struct sentinel_session *s, struct sentinel_chunk *chunk)
{
	if (chunk->queued)
		return;
	chunk->queued = true;
	chunk->epoch = s->epoch;
	list_add_tail(&chunk->dirty, &s->dirty);
}

/*
 * Notes an access to a present page. The epoch is the chunk's, not the
 * session's: an access that comes between the start of an epoch and the chunk's
 * turn in re-arming still belongs to the ended one, so that no page is recorded
 * twice in one. Returns the record's epoch, 0 when nothing was to be recorded.
 */
u32 sentinel_note_hit(struct sentinel_session *s, struct sentinel_chunk *chunk, unsigned int nr,
		      u8 node, u8 flags)
{
	u32 epoch = 0;

	spin_lock(&s->lock);
	if (test_bit(nr, chunk->active) && !__test_and_set_bit(nr, chunk->touched)) {
		queue_chunk(s, chunk);
		epoch = chunk->epoch;
		s->hits++;
		sentinel_log_append(s, (chunk->base >> PAGE_SHIFT) + nr, epoch, node, flags);
	}
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
		queue_chunk(s, chunk);
		__set_bit(nr, chunk->late);
		if (born) {
			__set_bit(nr, chunk->born);
			s->births++;
		} else {
			s->hits++;
		}
	}
	if (write)
		__set_bit(nr, chunk->written);
out:
	spin_unlock(&s->lock);
}

void sentinel_note_lost(struct sentinel_session *s)
{
	spin_lock(&s->lock);
	WRITE_ONCE(s->log->lost, ++s->lost);
	spin_unlock(&s->lock);
}

void sentinel_note_passed_on(struct sentinel_session *s)
{
	spin_lock(&s->lock);
	s->passed_on++;
	spin_unlock(&s->lock);
}
