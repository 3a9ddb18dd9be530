// SPDX-License-Identifier: GPL-2.0-only
/*
 * Notes changes that code outside this module makes to the target's mappings. Everything
 * that unarms a page without a fault calls the MMU notifiers first. But mremap() can move
 * pages that are not armed into an armed range, and does not call the notifiers for this
 * range. So copy_vma(), which mremap() calls, is hooked.
 */
#include "sentinel.h"

#include <linux/ftrace.h>
#include <linux/sched/mm.h>

/*
 * After sentinel_notify_hook_init(), the next three variables are written only under the
 * fault hook's mutex.
 */
/* whether the filter is set; without a filter, move_ops would trace every function */
static bool traceable;
static bool hooked;
/*
 * whether the last attempt to hook copy_vma() succeeded; before the first attempt, a copy of
 * `traceable`
 */
static bool works;

static bool unarms(const struct mmu_notifier_range *range)
{
	switch (range->event) {
	case MMU_NOTIFY_PROTECTION_PAGE: /* fork() write-protects pages: armed pages stay armed */
	case MMU_NOTIFY_SOFT_DIRTY: /* a write to clear_refs write-protects pages, too */
		return false;
	default:
		return true;
	}
}

static int range_start(struct mmu_notifier *notifier, const struct mmu_notifier_range *range)
{
	struct sentinel_session *s = container_of(notifier, struct sentinel_session, notifier);

	if (unarms(range)) {
		sentinel_change_begin(s, range->start, range->end);
		sentinel_note_change(s, range->start, range->end, SENTINEL_CHANGE_UNARMS);
	} else if (s->precise_writes) {
		sentinel_note_change(s, range->start, range->end, SENTINEL_CHANGE_PROTECTS);
	}
	return 0;
}

static void range_end(struct mmu_notifier *notifier, const struct mmu_notifier_range *range)
{
	struct sentinel_session *s = container_of(notifier, struct sentinel_session, notifier);

	if (unarms(range))
		sentinel_change_end(s, range->start, range->end);
}

static const struct mmu_notifier_ops notifier_ops = {
	.invalidate_range_start = range_start,
	.invalidate_range_end = range_end,
};

/*
 * Registers the MMU notifier. The caller holds no lock and keeps s->mm alive. Returns
 * -EINTR if the caller is killed while it waits: the target may hold its mmap_lock for
 * a long time.
 */
int sentinel_notify_register(struct sentinel_session *s)
{
	int ret;

	s->notifier.ops = &notifier_ops;
	if (mmap_write_lock_killable(s->mm))
		return -EINTR;
	ret = __mmu_notifier_register(&s->notifier, s->mm);
	mmap_write_unlock(s->mm);
	return ret;
}

/*
 * Unregisters the MMU notifier, and waits until no callback runs; also works after the
 * process has exited.
 */
void sentinel_notify_unregister(struct sentinel_session *s)
{
	mmu_notifier_unregister(&s->notifier, s->mm);
}

/*
 * copy_vma(vmap, addr, len, ...) runs before mremap() moves pages of the current
 * process to [addr, addr + len), where they keep their protection. Not every
 * supported kernel declares copy_vma() in a header for modules, so the compiler
 * cannot check the positions of these arguments. They are used as numbers only and
 * never dereferenced.
 */
static void pages_move(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
		       struct ftrace_regs *fregs)
{
	unsigned long start = sentinel_ftrace_argument(fregs, 1);
	unsigned long bytes = sentinel_ftrace_argument(fregs, 2);
	struct sentinel_session *s;

	if (!PAGE_ALIGNED(start | bytes) || start >= TASK_SIZE_MAX || bytes > TASK_SIZE_MAX - start)
		return;
	rcu_read_lock();
	s = sentinel_session_find(current->mm);
	if (s)
		sentinel_note_change(s, start, start + bytes, SENTINEL_CHANGE_MAPS);
	rcu_read_unlock();
}

static struct ftrace_ops move_ops = {
	.func = pages_move,
	.flags = FTRACE_OPS_FL_PERMANENT,
};

/*
 * Looks up copy_vma(). If it cannot be hooked, accesses to pages that mremap() moves into an
 * armed range may be missed.
 */
void sentinel_notify_hook_init(void)
{
	char function[] = "copy_vma";

	traceable = !ftrace_set_filter(&move_ops, function, strlen(function), 1);
	works = traceable;
	if (!traceable)
		pr_warn("copy_vma cannot be traced: accesses to pages that mremap() moves may be missed\n");
}

void sentinel_notify_hook_exit(void)
{
	ftrace_free_filter(&move_ops);
}

void sentinel_notify_hook_attach(void)
{
	if (!traceable)
		return;
	hooked = !register_ftrace_function(&move_ops);
	WRITE_ONCE(works, hooked);
}

void sentinel_notify_hook_detach(void)
{
	if (hooked)
		unregister_ftrace_function(&move_ops);
	hooked = false;
}

/*
 * Returns true if the last attempt to hook copy_vma() succeeded or, before the first attempt, if
 * copy_vma() can be traced.
 */
bool sentinel_notify_works(void)
{
	return READ_ONCE(works);
}
