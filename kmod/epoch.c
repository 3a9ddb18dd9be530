// SPDX-License-Identifier: GPL-2.0-only
/* Epochs: what was touched is armed again, what was born is recorded. And the epoch fd. */
#include "sentinel.h"

#include <linux/anon_inodes.h>
#include <linux/fs.h>
#include <linux/mm_inline.h>
#include <linux/nodemask.h>
#include <linux/uaccess.h>

#include "sentinel_trace.h"

/* The record of an access that waited for the epoch's end; the page-table lock is held. */
static void record_late(struct sentinel_session *s, unsigned long address, u32 epoch,
			struct page *page, u8 flags)
{
	u8 node = page ? sentinel_node(page) : SENTINEL_NODE_UNKNOWN;

	spin_lock(&s->lock);
	sentinel_log_append(s, address >> PAGE_SHIFT, epoch, node, flags);
	spin_unlock(&s->lock);
	trace_page_access(s->tgid, address, epoch, node, flags);
}

/*
 * Ends a chunk's epoch: records its late accesses, arms again what was touched
 * and what others un-armed, and drops armed bits that no PTE bears out.
 */
static u64 settle_chunk(struct sentinel_session *s, struct sentinel_chunk *chunk)
{
	DECLARE_BITMAP(look, SENTINEL_CHUNK_PAGES);
	DECLARE_BITMAP(late, SENTINEL_CHUNK_PAGES);
	DECLARE_BITMAP(born, SENTINEL_CHUNK_PAGES);
	DECLARE_BITMAP(written, SENTINEL_CHUNK_PAGES);
	struct vm_area_struct *vma = NULL;
	pte_t *table;
	unsigned int nr;
	spinlock_t *ptl;
	u64 armed = 0;
	u32 epoch;

	spin_lock(&s->lock);
	bitmap_copy(look, chunk->touched, SENTINEL_CHUNK_PAGES);
	bitmap_copy(late, chunk->late, SENTINEL_CHUNK_PAGES);
	bitmap_copy(born, chunk->born, SENTINEL_CHUNK_PAGES);
	bitmap_copy(written, chunk->written, SENTINEL_CHUNK_PAGES);
	bitmap_zero(chunk->touched, SENTINEL_CHUNK_PAGES);
	bitmap_zero(chunk->late, SENTINEL_CHUNK_PAGES);
	bitmap_zero(chunk->born, SENTINEL_CHUNK_PAGES);
	bitmap_zero(chunk->written, SENTINEL_CHUNK_PAGES);
	epoch = chunk->epoch;
	chunk->queued = false;
	list_del_init(&chunk->dirty);
	spin_unlock(&s->lock);

	bitmap_or(look, look, chunk->armed, SENTINEL_CHUNK_PAGES);
	table = sentinel_chunk_lock(s, chunk, &ptl);
	for_each_set_bit(nr, look, SENTINEL_CHUNK_PAGES) {
		unsigned long address = chunk->base + ((unsigned long)nr << PAGE_SHIFT);
		pte_t *ptep = NULL;

		if (!vma || address >= vma->vm_end)
			vma = find_vma(s->mm, address);
		if (table && vma && address >= vma->vm_start && sentinel_vma_fit(vma))
			ptep = &table[nr];
		if (!ptep || !pte_protnone(READ_ONCE(*ptep)))
			sentinel_clear_armed(s, chunk, nr);
		if (test_bit(nr, late))
			record_late(s, address, epoch,
				    ptep ? sentinel_pte_page(READ_ONCE(*ptep)) : NULL,
				    (test_bit(nr, born) ? SENTINEL_ACCESS_BIRTH : 0) |
					    (test_bit(nr, written) ? SENTINEL_ACCESS_WRITE : 0));
		if (ptep && test_bit(nr, chunk->active))
			armed += sentinel_arm_page(s, chunk, nr, ptep);
	}
	if (table)
		spin_unlock(ptl);
	return armed;
}

static void record_resident(struct sentinel_session *s)
{
	int node;

	sentinel_count_resident(s);
	spin_lock(&s->lock);
	for_each_node_state(node, N_MEMORY)
		sentinel_log_append(s, s->resident[node], s->epoch,
				    min(node, SENTINEL_NODE_UNKNOWN), SENTINEL_ACCESS_RESIDENCY);
	spin_unlock(&s->lock);
}

/* Starts the next epoch; s->control and mmap_lock are held. */
int sentinel_epoch_advance(struct sentinel_session *s, struct sentinel_epoch *epoch)
{
	struct sentinel_chunk *chunk, *following;
	u64 armed = 0;
	LIST_HEAD(todo);

	/* from here on accesses belong to the new epoch, but for chunks on todo */
	spin_lock(&s->lock);
	epoch->epoch = ++s->epoch;
	WRITE_ONCE(s->log->epoch, s->epoch);
	list_splice_init(&s->dirty, &todo);
	spin_unlock(&s->lock);

	inc_tlb_flush_pending(s->mm);
	list_for_each_entry_safe(chunk, following, &todo, dirty) {
		armed += settle_chunk(s, chunk);
		cond_resched();
	}
	if (armed)
		sentinel_flush_tlb(s->mm);
	dec_tlb_flush_pending(s->mm);
	epoch->rearmed_pages = armed;
	if (epoch->flags & SENTINEL_EPOCH_RESIDENCY)
		record_resident(s);
	return 0;
}

/* Records what an area that is about to go still owes the log; s->control and mmap_lock held. */
void sentinel_epoch_settle(struct sentinel_session *s, struct sentinel_area *area)
{
	unsigned long i;

	for (i = 0; i < area->chunk_count; i++) {
		struct sentinel_chunk *chunk = smp_load_acquire(&area->chunk[i]);

		if (chunk && READ_ONCE(chunk->queued))
			settle_chunk(s, chunk);
	}
}

/* The EPOCH ioctl, of the daemon's descriptor and of epoch fds; s->control is held. */
long sentinel_epoch_ioctl(struct sentinel_session *s, void __user *arg)
{
	struct sentinel_epoch epoch;
	int ret;

	if (copy_from_user(&epoch, arg, sizeof(epoch)))
		return -EFAULT;
	if ((epoch.flags & ~SENTINEL_EPOCH_RESIDENCY) ||
	    memchr_inv(epoch.reserved, 0, sizeof(epoch.reserved)))
		return -EINVAL;
	ret = sentinel_session_enter(s);
	if (ret)
		return ret;
	ret = sentinel_epoch_advance(s, &epoch);
	sentinel_session_leave(s);
	if (!ret && copy_to_user(arg, &epoch, sizeof(epoch)))
		ret = -EFAULT;
	return ret;
}

static long epoch_fd_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct sentinel_session *s = file->private_data;
	long ret;

	if (cmd != SENTINEL_IOC_EPOCH)
		return -ENOTTY;
	if (mutex_lock_killable(&s->control))
		return -EINTR;
	if (s->ended)
		ret = -ESRCH;
	else if (current->mm != s->mm)
		ret = -EXDEV;
	else
		ret = sentinel_epoch_ioctl(s, (void __user *)arg);
	mutex_unlock(&s->control);
	return ret;
}

static int epoch_fd_release(struct inode *inode, struct file *file)
{
	sentinel_session_put(file->private_data);
	return 0;
}

static const struct file_operations epoch_fd_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = epoch_fd_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.release = epoch_fd_release,
	.llseek = noop_llseek,
};

/* Makes an epoch fd in the caller's file table; it keeps the session's struct, not the session. */
int sentinel_epoch_fd(struct sentinel_session *s)
{
	int fd;

	kref_get(&s->refs);
	fd = anon_inode_getfd("[sentinel-epoch]", &epoch_fd_fops, s, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		sentinel_session_put(s);
	return fd;
}
