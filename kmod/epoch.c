// SPDX-License-Identifier: GPL-2.0-only
/*
 * Epochs: when an epoch ends, re-arms the touched pages and records the accesses whose faults
 * the kernel resolved. Also implements the epoch fd.
 */
#include "sentinel.h"

#include <linux/anon_inodes.h>
#include <linux/fs.h>
#include <linux/mm_inline.h>
#include <linux/nodemask.h>
#include <linux/uaccess.h>

/* State of a chunk (2 MiB of addresses, see sentinel.h) in the epoch that has ended. */
struct ended {
	u32 epoch;
	bool resolved; /* see struct sentinel_chunk */
	DECLARE_BITMAP(touched, SENTINEL_CHUNK_PAGES);
	DECLARE_BITMAP(late, SENTINEL_CHUNK_PAGES);
	DECLARE_BITMAP(born, SENTINEL_CHUNK_PAGES);
	DECLARE_BITMAP(written, SENTINEL_CHUNK_PAGES);
	DECLARE_BITMAP(lost, SENTINEL_CHUNK_PAGES);
	DECLARE_BITMAP(examine, SENTINEL_CHUNK_PAGES); /* pages whose PTEs are to be examined */
	DECLARE_BITMAP(unknown, SENTINEL_CHUNK_PAGES); /* result: accesses may have been missed */
};

static void take(struct sentinel_session *s, struct sentinel_chunk *chunk, struct ended *ended)
{
	spin_lock(&s->lock);
	bitmap_copy(ended->touched, chunk->touched, SENTINEL_CHUNK_PAGES);
	bitmap_copy(ended->late, chunk->late, SENTINEL_CHUNK_PAGES);
	bitmap_copy(ended->born, chunk->born, SENTINEL_CHUNK_PAGES);
	bitmap_copy(ended->written, chunk->written, SENTINEL_CHUNK_PAGES);
	bitmap_copy(ended->lost, chunk->lost, SENTINEL_CHUNK_PAGES);
	bitmap_or(ended->examine, chunk->touched, chunk->suspect, SENTINEL_CHUNK_PAGES);
	bitmap_zero(ended->unknown, SENTINEL_CHUNK_PAGES);
	bitmap_zero(chunk->touched, SENTINEL_CHUNK_PAGES);
	bitmap_zero(chunk->late, SENTINEL_CHUNK_PAGES);
	bitmap_zero(chunk->born, SENTINEL_CHUNK_PAGES);
	bitmap_zero(chunk->written, SENTINEL_CHUNK_PAGES);
	bitmap_zero(chunk->lost, SENTINEL_CHUNK_PAGES);
	/*
	 * while other code changes the chunk's mappings, pages may become unarmed even after
	 * they were examined: keep `suspect` for the next epoch
	 */
	if (!sentinel_changes(s, chunk->base, chunk->base + (1UL << SENTINEL_CHUNK_SHIFT)))
		bitmap_zero(chunk->suspect, SENTINEL_CHUNK_PAGES);
	ended->epoch = chunk->epoch;
	ended->resolved = chunk->resolved;
	chunk->resolved = false;
	chunk->queued = false;
	list_del_init(&chunk->dirty);
	if (!bitmap_empty(chunk->suspect, SENTINEL_CHUNK_PAGES))
		sentinel_chunk_queue(s, chunk);
	spin_unlock(&s->lock);
}

/*
 * Logs runs of pages as UNKNOWN, because an access to them may have been missed.
 * AGAIN in the flags means that an access was recorded, but a later write may have been
 * missed.
 */
static void record_unknown(struct sentinel_session *s, struct sentinel_chunk *chunk,
			   const unsigned long *pages, u32 epoch, u8 flags)
{
	unsigned int first, last;

	spin_lock(&s->lock);
	for_each_set_bitrange(first, last, pages, SENTINEL_CHUNK_PAGES) {
		s->unarmed += last - first;
		sentinel_log_append(s, (struct sentinel_access){
					       .page = (chunk->base >> PAGE_SHIFT) + first,
					       .epoch = epoch,
					       .node = SENTINEL_NODE_UNKNOWN,
					       .flags = SENTINEL_ACCESS_UNKNOWN | flags,
					       .more_pages = last - first - 1,
				       });
	}
	spin_unlock(&s->lock);
}

/*
 * Returns true if an access to a page may have been missed: the page's PTE permits an
 * access without a fault, or permitted one before other code changed the PTE. With precise
 * writes (see struct sentinel_session), if a read of the page was recorded, only a missed
 * write counts.
 */
static bool missed(struct sentinel_session *s, struct sentinel_chunk *chunk,
		   const struct ended *ended, unsigned int nr, pte_t pte)
{
	if (test_bit(nr, ended->lost))
		return true;
	if (!pte_present(pte))
		return false;
	if (test_bit(nr, ended->touched))
		return pte_write(pte);
	return !test_bit(nr, chunk->armed);
}

/*
 * Examines one page at the end of an epoch and arms it; the page-table lock is held.
 * ptep is NULL if there is no PTE that may be armed. Returns true if the page is armed
 * now and was not before.
 */
static bool settle_page(struct sentinel_session *s, struct sentinel_chunk *chunk,
			struct ended *ended, unsigned int nr, pte_t *ptep)
{
	unsigned long address = chunk->base + ((unsigned long)nr << PAGE_SHIFT);
	pte_t pte = ptep ? READ_ONCE(*ptep) : __pte(0);
	bool armed;

	if (!pte_protnone(pte))
		sentinel_clear_armed(s, chunk, nr);
	if (test_bit(nr, ended->late)) {
		sentinel_record_late(s, address, ended->epoch, sentinel_pte_page(pte),
				     sentinel_late_flags(ended->born, ended->written, nr));
		/* if the fault is still in progress, the kernel maps the page after this call */
		if (pte_none(pte))
			sentinel_note_resolved(s, chunk);
	}
	if (!test_bit(nr, chunk->active))
		return false;
	if (!test_bit(nr, s->precise_writes ? ended->written : ended->touched) &&
	    missed(s, chunk, ended, nr, pte))
		__set_bit(nr, ended->unknown);
	armed = ptep && sentinel_arm_page(s, chunk, nr, ptep);
	/* the page is in swap, under migration or not armable: later accesses may cause no fault */
	if (!pte_none(pte) && !test_bit(nr, chunk->armed))
		sentinel_note_unwatched(s, chunk, nr, nr + 1);
	return armed;
}

/* Like settle_page(), but for accessible memory that must not be armed. */
static void settle_foreign(struct sentinel_session *s, struct sentinel_chunk *chunk,
			   struct ended *ended, unsigned int nr)
{
	settle_page(s, chunk, ended, nr, NULL);
	if (!test_bit(nr, chunk->active))
		return;
	if (!test_bit(nr, ended->touched))
		__set_bit(nr, ended->unknown);
	sentinel_note_unwatched(s, chunk, nr, nr + 1);
}

/*
 * Does the work of settle_chunk() for a chunk mapped by a huge page. pmd is the huge page's
 * entry; the entry's lock is held.
 */
static u64 settle_huge(struct sentinel_session *s, struct sentinel_chunk *chunk,
		       struct ended *ended, pmd_t *pmd)
{
	bool writable = pmd_write(READ_ONCE(*pmd));
	unsigned int nr;
	bool armed;

	/* record the accesses that the kernel resolved by mapping the huge page */
	for_each_set_bit(nr, ended->late, SENTINEL_CHUNK_PAGES)
		sentinel_record_late(s, chunk->base + ((unsigned long)nr << PAGE_SHIFT),
				     ended->epoch, pmd_page(READ_ONCE(*pmd)),
				     sentinel_late_flags(ended->born, ended->written, nr));
	for_each_set_bit(nr, chunk->armed, SENTINEL_CHUNK_PAGES)
		sentinel_clear_armed(s, chunk, nr);
	if (sentinel_huge_settle(s, chunk, pmd, &armed))
		bitmap_andnot(ended->unknown, chunk->active, ended->touched, SENTINEL_CHUNK_PAGES);
	else
		bitmap_andnot(ended->unknown, ended->lost, ended->touched, SENTINEL_CHUNK_PAGES);
	if (s->precise_writes) {
		bitmap_andnot(ended->examine, ended->touched, ended->written, SENTINEL_CHUNK_PAGES);
		if (!writable)
			bitmap_and(ended->examine, ended->examine, ended->lost,
				   SENTINEL_CHUNK_PAGES);
		bitmap_or(ended->unknown, ended->unknown, ended->examine, SENTINEL_CHUNK_PAGES);
	}
	if (!chunk->huge_armed)
		sentinel_note_unwatched(s, chunk, 0, SENTINEL_CHUNK_PAGES);
	return armed ? SENTINEL_CHUNK_PAGES : 0;
}

static u64 settle_table(struct sentinel_session *s, struct sentinel_chunk *chunk,
			struct ended *ended, pte_t *table)
{
	struct vm_area_struct *vma = NULL;
	unsigned int nr;
	u64 armed = 0;

	/*
	 * A fault that the kernel resolved may have mapped neighbours of the accessed page, too,
	 * without arming them. A NUMA hint fault in a large folio may also have unarmed armed
	 * pages of the folio, without calling the MMU notifiers. So if the kernel resolved any
	 * fault in this chunk, examine all pages.
	 */
	if (ended->resolved)
		bitmap_fill(ended->examine, SENTINEL_CHUNK_PAGES);
	for_each_set_bit(nr, ended->examine, SENTINEL_CHUNK_PAGES) {
		unsigned long address = chunk->base + ((unsigned long)nr << PAGE_SHIFT);
		bool mapped;

		if (!vma || address >= vma->vm_end)
			vma = find_vma(s->mm, address);
		mapped = vma && address >= vma->vm_start;
		if (mapped && !sentinel_vma_fit(vma) && vma_is_accessible(vma))
			settle_foreign(s, chunk, ended, nr);
		else if (mapped && sentinel_vma_fit(vma) && table)
			armed += settle_page(s, chunk, ended, nr, &table[nr]);
		else
			settle_page(s, chunk, ended, nr, NULL);
	}
	return armed;
}

/*
 * Completes settle_chunk() for a chunk without a page table. If the chunk is mapped by a
 * huge page that cannot be armed, such as the huge zero page, the chunk's pages may have
 * been accessed without a fault. So this function marks as unknown those watched pages
 * that were not touched.
 */
static void settle_unwatchable(struct sentinel_session *s, struct sentinel_chunk *chunk,
			       struct ended *ended)
{
	unsigned long next;
	pmd_t *pmd = sentinel_pmd(s->mm, chunk->base, &next);
	pmd_t value = pmd ? READ_ONCE(*pmd) : __pmd(0);

	if (!pmd_present(value) || !pmd_leaf(value))
		return;
	bitmap_andnot(ended->unknown, chunk->active, ended->touched, SENTINEL_CHUNK_PAGES);
	sentinel_note_unwatched(s, chunk, 0, SENTINEL_CHUNK_PAGES);
}

/*
 * Ends a chunk's epoch. Logs the accesses that the kernel resolved, and the pages
 * whose accesses may have been missed. Arms the pages that were touched, and those
 * that other code has unarmed. Returns the number of pages armed.
 */
static u64 settle_chunk(struct sentinel_session *s, struct sentinel_chunk *chunk)
{
	DECLARE_BITMAP(writes, SENTINEL_CHUNK_PAGES);
	struct ended ended;
	spinlock_t *ptl;
	pmd_t *huge;
	u64 armed;

	take(s, chunk, &ended);
	huge = sentinel_chunk_huge_lock(s, chunk, &ptl);
	if (huge) {
		armed = settle_huge(s, chunk, &ended, huge);
		spin_unlock(ptl);
	} else {
		pte_t *table = sentinel_chunk_lock(s, chunk, &ptl);

		sentinel_huge_clear_armed(s, chunk);
		armed = settle_table(s, chunk, &ended, table);
		if (table)
			spin_unlock(ptl);
		else
			settle_unwatchable(s, chunk, &ended);
	}
	bitmap_and(writes, ended.unknown, ended.touched, SENTINEL_CHUNK_PAGES);
	bitmap_andnot(ended.unknown, ended.unknown, ended.touched, SENTINEL_CHUNK_PAGES);
	record_unknown(s, chunk, ended.unknown, ended.epoch, 0);
	record_unknown(s, chunk, writes, ended.epoch, SENTINEL_ACCESS_AGAIN);
	return armed;
}

static void record_resident(struct sentinel_session *s)
{
	int node;

	sentinel_count_resident(s);
	spin_lock(&s->lock);
	for_each_node_state(node, N_MEMORY)
		sentinel_log_append(s, (struct sentinel_access){
					       .page = s->resident[node],
					       .epoch = s->epoch,
					       .node = min(node, SENTINEL_NODE_UNKNOWN),
					       .flags = SENTINEL_ACCESS_RESIDENCY,
				       });
	spin_unlock(&s->lock);
}

/* Starts the next epoch; s->control and mmap_lock are held. */
static void advance(struct sentinel_session *s, struct sentinel_epoch *epoch)
{
	struct sentinel_areas *table = sentinel_area_table(s);
	struct sentinel_chunk *chunk, *following;
	unsigned int i;
	u64 armed = 0;
	LIST_HEAD(todo);

	for (i = 0; table && i < table->count; i++)
		sentinel_find_unarmed(s, table->area[i]);
	/* from here on, accesses belong to the new epoch, except in chunks on the list `todo` */
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
}

/*
 * Writes the pending late records of an area that will be removed; s->control and mmap_lock
 * are held.
 */
void sentinel_epoch_settle(struct sentinel_session *s, struct sentinel_area *area)
{
	unsigned long i;

	for (i = 0; i < area->chunk_count; i++) {
		struct sentinel_chunk *chunk = sentinel_chunk_at(area, i);

		if (chunk && READ_ONCE(chunk->queued))
			settle_chunk(s, chunk);
	}
}

/*
 * Starts the next epoch; s->control is held. If target_only is set, fails unless the
 * caller is the attached process.
 */
static long begin(struct sentinel_session *s, struct sentinel_epoch *epoch, bool target_only)
{
	long ret;

	if (target_only && current->mm != s->mm)
		return -EXDEV;
	ret = sentinel_session_enter(s);
	if (ret)
		return ret;
	advance(s, epoch);
	sentinel_session_leave(s);
	return 0;
}

/*
 * Handles EPOCH on the daemon's descriptor and on epoch fds. User memory is
 * accessed only while no lock is held. The process that owns the memory can
 * make a fault on the memory last arbitrarily long, for example with
 * userfaultfd.
 */
long sentinel_epoch_ioctl(struct sentinel_session *s, void __user *arg, bool target_only)
{
	struct sentinel_epoch epoch;
	long ret;

	if (copy_from_user(&epoch, arg, sizeof(epoch)))
		return -EFAULT;
	if ((epoch.flags & ~SENTINEL_EPOCH_RESIDENCY) ||
	    memchr_inv(epoch.reserved, 0, sizeof(epoch.reserved)))
		return -EINVAL;
	ret = sentinel_session_lock(s);
	if (ret)
		return ret;
	ret = begin(s, &epoch, target_only);
	mutex_unlock(&s->control);
	if (ret)
		return ret;
	return copy_to_user(arg, &epoch, sizeof(epoch)) ? -EFAULT : 0;
}

static long epoch_fd_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	if (cmd != SENTINEL_IOC_EPOCH)
		return -ENOTTY;
	return sentinel_epoch_ioctl(file->private_data, (void __user *)arg, true);
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

/* Returns the file of a new epoch fd, or ERR_PTR; the file may outlive the session's target. */
struct file *sentinel_epoch_file(struct sentinel_session *s)
{
	struct file *file;

	kref_get(&s->refs);
	file = anon_inode_getfile("[sentinel-epoch]", &epoch_fd_fops, s, O_RDWR);
	if (IS_ERR(file))
		sentinel_session_put(s);
	return file;
}
