// SPDX-License-Identifier: GPL-2.0-only
/* The access log that user space maps. */
#include "sentinel.h"

#include <linux/log2.h>
#include <linux/vmalloc.h>

#define LOG_RECORDS_MIN 4096
#define LOG_RECORDS_MAX (16 << 20)

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
	atomic_set(&s->log_users, 2);
	s->records = (void *)s->log + SENTINEL_LOG_OFFSET;
	s->record_count = records;
	s->log->records = records;
	s->log->record_bytes = sizeof(struct sentinel_access);
	s->log->epoch = s->epoch;
	return 0;
}

/*
 * Drops one of the two references to the log. The open device file holds one
 * reference. The session holds the other one until the session ends.
 */
void sentinel_log_put(struct sentinel_session *s)
{
	if (atomic_dec_and_test(&s->log_users))
		vfree(s->log);
}

int sentinel_log_mmap(struct sentinel_session *s, struct vm_area_struct *vma)
{
	if (!(vma->vm_flags & VM_SHARED) || vma->vm_pgoff ||
	    vma->vm_end - vma->vm_start > log_bytes(s->record_count))
		return -EINVAL;
	return remap_vmalloc_range(vma, s->log, 0);
}

/*
 * Appends a record; s->lock is held. The tail comes from user space and is not
 * trusted: an out-of-bounds tail only makes the log look full. If the log is at least half
 * full, a record whose only flag is AGAIN (a further access to the page in the same epoch) is
 * left out, to leave room for first accesses.
 */
void sentinel_log_append(struct sentinel_session *s, struct sentinel_access record)
{
	u64 used = s->head - READ_ONCE(s->log->tail);

	lockdep_assert_held(&s->lock);
	if (used >= s->record_count / 2 && record.flags == SENTINEL_ACCESS_AGAIN)
		return;
	if (used >= s->record_count) {
		WRITE_ONCE(s->log->lost, ++s->lost);
		return;
	}
	s->records[s->head & (s->record_count - 1)] = record;
	/* The reader in user space needs no barrier: x86-64 keeps the order of its loads. */
	smp_store_release(&s->log->head, ++s->head);
}

void sentinel_note_lost(struct sentinel_session *s)
{
	spin_lock(&s->lock);
	WRITE_ONCE(s->log->lost, ++s->lost);
	spin_unlock(&s->lock);
}
