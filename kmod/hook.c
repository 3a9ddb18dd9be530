// SPDX-License-Identifier: GPL-2.0-only
/*
 * The fault hook: an ftrace callback at the entry of handle_mm_fault(). It
 * notes the access, gives the page back and, where nothing is left to do, makes
 * the function return 0 without running. Without that skip a concurrent re-arm
 * could let the running function meet PROT_NONE, which it takes for NUMA
 * balancing: it un-arms the page and may migrate it.
 *
 * It runs with preemption off. No caller of handle_mm_fault() is in interrupt
 * context, so plain spinlocks do.
 */
#include "sentinel.h"

#include <linux/ftrace.h>

#include "sentinel_trace.h"

static DEFINE_MUTEX(hook_mutex);
static struct ftrace_ops *attached; /* under hook_mutex; NULL before the first use */

/* Notes an access that only the kernel can resolve: no page there, or none that can be armed. */
static void note_absent(struct sentinel_session *s, struct sentinel_chunk *chunk, unsigned int nr,
			bool born, bool write)
{
	sentinel_clear_armed(s, chunk, nr);
	sentinel_note_late(s, chunk, nr, born, write);
	if (!born)
		sentinel_note_passed_on(s);
}

/* A fault at a present PTE; its lock is held and its armed bit cleared. True when resolved. */
static bool present_fault(struct sentinel_session *s, struct vm_area_struct *vma, pte_t *ptep,
			  bool was_armed, unsigned int flags)
{
	bool write = flags & FAULT_FLAG_WRITE;
	pte_t entry = READ_ONCE(*ptep);

	if (pte_protnone(entry)) {
		if (!was_armed)
			return false; /* NUMA balancing's own */
		entry = sentinel_entry_restore(vma, &ptep->pte, false, true,
					       write || !s->precise_writes);
	} else if (write && s->precise_writes) {
		/* read-only perhaps because a read came first */
		entry = sentinel_entry_restore(vma, &ptep->pte, false, true, true);
	}
	if (flags & FAULT_FLAG_UNSHARE)
		return false;
	return !write || pte_write(entry);
}

static bool session_fault(struct sentinel_session *s, struct vm_area_struct *vma,
			  unsigned long address, unsigned int flags)
{
	struct sentinel_area *area = sentinel_area_find(s, address);
	unsigned int nr = sentinel_page_nr(address);
	bool write = flags & FAULT_FLAG_WRITE;
	u8 noted = write ? SENTINEL_ACCESS_WRITE : 0;
	struct sentinel_chunk *chunk;
	struct page *page = NULL;
	bool resolved = false;
	pte_t *ptep = NULL;
	bool was_armed;
	unsigned long index;
	unsigned long next;
	spinlock_t *ptl;
	u32 epoch;
	pmd_t *pmd;
	pte_t entry;
	u8 node;

	if (!area || !sentinel_vma_fit(vma))
		return false;
	index = sentinel_chunk_index(area, address);
	chunk = sentinel_chunk_at(area, index);
	if (!chunk) {
		if (!test_bit(index, area->active))
			return false;
		chunk = sentinel_chunk_get(s, area, index, GFP_NOWAIT | __GFP_NOWARN);
		if (!chunk) {
			sentinel_note_lost(s);
			return false;
		}
	}
	if (!test_bit(nr, chunk->active) && !test_bit(nr, chunk->armed) &&
	    !READ_ONCE(chunk->huge_armed))
		return false;

	pmd = sentinel_pmd(vma->vm_mm, address, &next);
	if (pmd)
		ptep = sentinel_pte_lock(vma->vm_mm, pmd, address, &ptl);
	if (!ptep) {
		pmd_t *huge = sentinel_huge_lock(vma->vm_mm, address, &ptl);

		if (huge) {
			resolved = sentinel_huge_fault(s, chunk, vma, huge, flags);
			spin_unlock(ptl);
			return resolved;
		}
		note_absent(s, chunk, nr, !pmd || pmd_none(READ_ONCE(*pmd)), write);
		return false;
	}
	entry = READ_ONCE(*ptep);
	page = sentinel_pte_page(entry);
	if (!page) {
		/* the zero page counts as absent: a write to it is a birth */
		if (!pte_present(entry) || write)
			note_absent(s, chunk, nr, pte_none(entry) || pte_present(entry), write);
		spin_unlock(ptl);
		return false;
	}
	was_armed = sentinel_clear_armed(s, chunk, nr);
	resolved = present_fault(s, vma, ptep, was_armed, flags);
	node = sentinel_node(page);
	epoch = sentinel_note_hit(s, chunk, nr, was_armed, node, &noted);
	spin_unlock(ptl);

	if (epoch)
		trace_page_access(s->tgid, address, epoch, node, noted);
	if (!resolved)
		sentinel_note_passed_on(s);
	return resolved;
}

static bool fault(struct vm_area_struct *vma, unsigned long address, unsigned int flags)
{
	struct sentinel_session *s;
	bool resolved = false;

	rcu_read_lock();
	s = sentinel_session_find(vma->vm_mm);
	if (s)
		resolved = session_fault(s, vma, address & PAGE_MASK, flags);
	rcu_read_unlock();
	return resolved;
}

/* What handle_mm_fault() becomes for a fault that the hook resolved. */
static noinline vm_fault_t fault_resolved(void)
{
	return 0;
}

static bool traced_fault(struct ftrace_regs *fregs)
{
	return fault((struct vm_area_struct *)sentinel_ftrace_argument(fregs, 0),
		     sentinel_ftrace_argument(fregs, 1), sentinel_ftrace_argument(fregs, 2));
}

static void hook_and_skip(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
			  struct ftrace_regs *fregs)
{
	if (traced_fault(fregs))
		sentinel_ftrace_replace(fregs, (unsigned long)fault_resolved);
}

static void hook_only(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
		      struct ftrace_regs *fregs)
{
	traced_fault(fregs);
}

static struct ftrace_ops skip_ops = {
	.func = hook_and_skip,
	.flags = FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT,
};

static struct ftrace_ops plain_ops = {
	.func = hook_only,
	.flags = FTRACE_OPS_FL_PERMANENT,
};

static int attach_ops(struct ftrace_ops *ops)
{
	int ret = ftrace_set_filter_ip(ops, (unsigned long)handle_mm_fault, 0, 1);

	if (!ret)
		ret = register_ftrace_function(ops);
	if (!ret)
		attached = ops;
	return ret;
}

/*
 * Attaches the hook when it is first needed, and keeps it: registering is slow.
 * When another user (a livepatch) holds the right to redirect the function, the
 * hook does without the skip. -EBUSY while the kernel.ftrace_enabled is 0.
 */
int sentinel_hook_attach(void)
{
	int ret = 0;

	mutex_lock(&hook_mutex);
	if (!attached) {
		sentinel_notify_hook_attach();
		ret = attach_ops(&skip_ops);
		if (ret == -EBUSY) {
			ret = attach_ops(&plain_ops);
			if (!ret)
				pr_warn("handle_mm_fault has another user: accesses may be "
					"missed\n");
		}
	}
	mutex_unlock(&hook_mutex);
	return ret;
}

/* Takes the hook away and waits until no task is inside it; the module is unloading. */
void sentinel_hook_detach(void)
{
	if (attached)
		unregister_ftrace_function(attached);
	sentinel_notify_hook_detach();
	/* only now: a freed filter stays referred to, and the next attempt would read it */
	ftrace_free_filter(&skip_ops);
	ftrace_free_filter(&plain_ops);
}

/* Features of the hook that is attached; 0 when none is. */
u32 sentinel_hook_features(void)
{
	u32 features = 0;

	mutex_lock(&hook_mutex);
	if (attached)
		features = SENTINEL_FEATURE_BIRTHS | SENTINEL_FEATURE_PRECISE_WRITE |
			   SENTINEL_FEATURE_REARM | SENTINEL_FEATURE_AGE | SENTINEL_FEATURE_HUGE;
	if (attached && sentinel_notify_hooked())
		features |= SENTINEL_FEATURE_UNKNOWN;
	if (attached == &skip_ops)
		features |= SENTINEL_FEATURE_SKIP;
	mutex_unlock(&hook_mutex);
	return features;
}
