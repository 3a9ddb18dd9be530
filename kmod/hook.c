// SPDX-License-Identifier: GPL-2.0-only
/*
 * The fault hook: an ftrace callback at the entry of handle_mm_fault(). The hook notes
 * the access, restores the page (makes the page's entry accessible again) and, if that
 * resolves the fault, makes handle_mm_fault() return 0 without running. If
 * handle_mm_fault() ran after the page was restored, it could find the entry PROT_NONE
 * again because of a concurrent re-arm. It would then mistake the fault for a NUMA hint
 * fault: it would unarm the page, and perhaps migrate the page.
 *
 * ftrace may call the hook with preemption enabled, so the hook may be preempted while it
 * holds no spinlock. handle_mm_fault() is never called in interrupt context, so plain spinlocks
 * suffice.
 */
#include "sentinel.h"

#include <linux/ftrace.h>

#include "sentinel_trace.h"

static DEFINE_MUTEX(hook_mutex);
static struct ftrace_ops *attached; /* guarded by hook_mutex; NULL: not hooked */
static unsigned int users; /* guarded by hook_mutex */
/* whether handle_mm_fault() can be skipped; true until the first attach() */
static bool skips = true;

/* A fault on a page that a session watches. */
struct watched_fault {
	struct sentinel_session *s;
	struct vm_area_struct *vma;
	struct sentinel_chunk *chunk;
	unsigned long address; /* the page's address */
	unsigned int nr; /* the page's number in the chunk (2 MiB of addresses, see sentinel.h) */
	unsigned int flags; /* FAULT_FLAG_* */
};

static bool is_write(const struct watched_fault *fault)
{
	return fault->flags & FAULT_FLAG_WRITE;
}

/* Notes an access that only the kernel can resolve: the page is absent or cannot be armed. */
static void note_absent(const struct watched_fault *fault, bool born)
{
	sentinel_clear_armed(fault->s, fault->chunk, fault->nr);
	sentinel_note_late(fault->s, fault->chunk, fault->nr, born, is_write(fault));
	if (!born)
		sentinel_note_passed_on(fault->s);
}

/*
 * Restores a present PTE, whose lock is held and whose armed bit is already clear.
 * Returns true if the restored PTE resolves the fault.
 */
static bool restore_page(const struct watched_fault *fault, pte_t *ptep, bool was_armed)
{
	bool write = is_write(fault);
	bool precise_writes = fault->s->precise_writes;
	pte_t entry = READ_ONCE(*ptep);

	if (pte_protnone(entry)) {
		if (!was_armed)
			return false; /* NUMA balancing made the entry PROT_NONE */
		entry = sentinel_entry_restore(fault->vma, &ptep->pte, false, true,
					       write || !precise_writes);
	} else if (write && precise_writes) {
		/* the fault of an earlier read may have restored the entry read-only */
		entry = sentinel_entry_restore(fault->vma, &ptep->pte, false, true, true);
	}
	if (fault->flags & FAULT_FLAG_UNSHARE)
		return false;
	return !write || pte_write(entry);
}

/*
 * Handles a fault at an address that has a PTE, and unlocks the page table. Returns true if
 * the fault is resolved.
 */
static bool small_fault(const struct watched_fault *fault, pte_t *ptep, spinlock_t *ptl)
{
	u8 access = is_write(fault) ? SENTINEL_ACCESS_WRITE : 0;
	pte_t entry = READ_ONCE(*ptep);
	struct page *page = sentinel_pte_page(entry);
	bool was_armed, resolved;
	u32 epoch;
	u8 node;

	if (!page) {
		/* the zero page counts as an absent page, so a write to it is a birth */
		if (!pte_present(entry) || is_write(fault))
			note_absent(fault, pte_none(entry) || pte_present(entry));
		spin_unlock(ptl);
		return false;
	}
	was_armed = sentinel_clear_armed(fault->s, fault->chunk, fault->nr);
	resolved = restore_page(fault, ptep, was_armed);
	node = sentinel_node(page);
	epoch = sentinel_note_hit(fault->s, fault->chunk, fault->nr, was_armed, node, &access);
	spin_unlock(ptl);

	if (epoch)
		trace_page_access(fault->s->tgid, fault->address, epoch, node, access);
	if (!resolved)
		sentinel_note_passed_on(fault->s);
	return resolved;
}

/* Handles a fault at an address without a page table: a huge page or an absent page. */
static bool huge_fault(const struct watched_fault *fault, pmd_t *pmd)
{
	spinlock_t *ptl;
	pmd_t *huge = sentinel_huge_lock(fault->vma->vm_mm, fault->address, &ptl);
	bool resolved;

	if (!huge) {
		note_absent(fault, !pmd || pmd_none(READ_ONCE(*pmd)));
		return false;
	}
	resolved = sentinel_huge_fault(fault->s, fault->chunk, fault->vma, huge, fault->flags);
	spin_unlock(ptl);

	if (!resolved)
		sentinel_note_passed_on(fault->s);
	return resolved;
}

/*
 * If the page is watched or still armed, returns the page's chunk. Otherwise, or if the
 * chunk cannot be allocated, returns NULL.
 */
static struct sentinel_chunk *watched_chunk(struct sentinel_session *s, unsigned long address)
{
	struct sentinel_area *area = sentinel_area_find(s, address);
	unsigned int nr = sentinel_page_nr(address);
	struct sentinel_chunk *chunk;
	unsigned long index;

	if (!area)
		return NULL;
	index = sentinel_chunk_index(area, address);
	chunk = sentinel_chunk_at(area, index);
	if (!chunk && test_bit(index, area->active)) {
		chunk = sentinel_chunk_get(s, area, index, GFP_NOWAIT | __GFP_NOWARN);
		if (!chunk)
			sentinel_note_lost(s);
	}
	if (!chunk)
		return NULL;
	if (!test_bit(nr, chunk->active) && !test_bit(nr, chunk->armed) &&
	    !READ_ONCE(chunk->huge_armed))
		return NULL;
	return chunk;
}

/* Notes that a fault on an unwatched page may also map watched pages of the same chunk. */
static void note_neighbours(struct sentinel_session *s, unsigned long address)
{
	const struct sentinel_areas *table = rcu_dereference(s->areas);
	unsigned long start = ALIGN_DOWN(address, 1UL << SENTINEL_CHUNK_SHIFT);
	unsigned int i;

	for (i = 0; table && i < table->count; i++) {
		struct sentinel_area *area = table->area[i];
		struct sentinel_chunk *chunk;

		if (area->end <= start || area->start >= start + (1UL << SENTINEL_CHUNK_SHIFT))
			continue;
		chunk = sentinel_chunk_at(area, sentinel_chunk_index(area, start));
		if (chunk)
			sentinel_note_resolved(s, chunk);
	}
}

/* Handles a fault in the session's address space; returns true if the fault is resolved. */
static bool session_fault(struct sentinel_session *s, struct vm_area_struct *vma,
			  unsigned long address, unsigned int flags)
{
	struct watched_fault fault = {
		.s = s,
		.vma = vma,
		.address = address,
		.nr = sentinel_page_nr(address),
		.flags = flags,
	};
	pte_t *ptep = NULL;
	unsigned long next;
	spinlock_t *ptl;
	pmd_t *pmd;

	if (!sentinel_vma_fit(vma))
		return false;
	fault.chunk = watched_chunk(s, address);
	if (!fault.chunk) {
		note_neighbours(s, address);
		return false;
	}
	pmd = sentinel_pmd(vma->vm_mm, address, &next);
	if (pmd)
		ptep = sentinel_pte_lock(vma->vm_mm, pmd, address, &ptl);
	return ptep ? small_fault(&fault, ptep, ptl) : huge_fault(&fault, pmd);
}

/* Handles a page fault; returns true if a session of this address space has resolved it. */
static bool mm_fault(struct vm_area_struct *vma, unsigned long address, unsigned int flags)
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

/* Runs instead of handle_mm_fault() if the hook resolved the fault. */
static noinline vm_fault_t fault_resolved(void)
{
	return 0;
}

static bool traced_fault(struct ftrace_regs *fregs)
{
	return mm_fault((struct vm_area_struct *)sentinel_ftrace_argument(fregs, 0),
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
	int ret = register_ftrace_function(ops);

	if (!ret)
		attached = ops;
	return ret;
}

/*
 * Hooks handle_mm_fault(). If another user of ftrace (a livepatch) redirects the
 * function, the hook can observe the calls, but cannot skip them.
 */
static int attach(void)
{
	int ret = attach_ops(&skip_ops);

	if (ret == -EBUSY) {
		ret = attach_ops(&plain_ops);
		if (!ret)
			pr_warn("handle_mm_fault is redirected by another ftrace user: some accesses will be missed\n");
	}
	if (ret)
		return ret;
	WRITE_ONCE(skips, attached == &skip_ops);
	sentinel_notify_hook_attach();
	return 0;
}

/*
 * Adds one user of the hook; the first user hooks the page faults of the whole system.
 * Returns -EBUSY while kernel.ftrace_enabled is 0, -EINTR if killed.
 */
int sentinel_hook_get(void)
{
	int ret = 0;

	if (mutex_lock_killable(&hook_mutex))
		return -EINTR;
	if (!users)
		ret = attach();
	if (!ret)
		users++;
	mutex_unlock(&hook_mutex);
	return ret;
}

/*
 * Removes one user. If it was the last one, removes the hook and waits until no task is inside
 * the hook.
 */
void sentinel_hook_put(void)
{
	mutex_lock(&hook_mutex);
	if (!--users) {
		sentinel_notify_hook_detach();
		unregister_ftrace_function(attached);
		attached = NULL;
	}
	mutex_unlock(&hook_mutex);
}

/* Looks up the functions to hook, but does not hook them. */
int sentinel_hook_init(void)
{
	int ret = ftrace_set_filter_ip(&skip_ops, (unsigned long)handle_mm_fault, 0, 1);

	if (!ret)
		ret = ftrace_set_filter_ip(&plain_ops, (unsigned long)handle_mm_fault, 0, 1);
	if (ret) {
		pr_err("handle_mm_fault cannot be traced\n");
		sentinel_hook_exit();
		return ret;
	}
	sentinel_notify_hook_init();
	return 0;
}

/* Undoes sentinel_hook_init(); no session exists any more. */
void sentinel_hook_exit(void)
{
	sentinel_notify_hook_exit();
	ftrace_free_filter(&skip_ops);
	ftrace_free_filter(&plain_ops);
}

/*
 * Returns the features that worked when the hook was last attached. Before the first
 * attach, returns the features that are expected to work. Does not take hook_mutex, because its
 * holder may be waiting for ftrace.
 */
u32 sentinel_hook_features(void)
{
	u32 features = SENTINEL_FEATURE_BIRTHS | SENTINEL_FEATURE_PRECISE_WRITE |
		       SENTINEL_FEATURE_REARM | SENTINEL_FEATURE_AGE | SENTINEL_FEATURE_HUGE;

	if (sentinel_notify_works())
		features |= SENTINEL_FEATURE_UNKNOWN;
	if (READ_ONCE(skips))
		features |= SENTINEL_FEATURE_SKIP;
	return features;
}
