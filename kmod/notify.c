// SPDX-License-Identifier: GPL-2.0-only
/*
 * Changes of the target's mappings by others. Everything that unarms a page
 * without a fault calls the MMU notifiers first, except mremap(): it does not
 * notify for the range that pages move to, so its worker function is hooked.
 */
#include "sentinel.h"

#include <linux/ftrace.h>
#include <linux/sched/mm.h>

static bool hooked; /* written under the fault hook's mutex */

static bool unarms(const struct mmu_notifier_range *range)
{
	switch (range->event) {
	case MMU_NOTIFY_PROTECTION_PAGE: /* fork() write-protects pages: armed ones stay armed */
	case MMU_NOTIFY_SOFT_DIRTY: /* clear_refs does the same */
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

/* Takes mmap_lock for writing, so no lock may be held; s->mm is alive. */
int sentinel_notify_register(struct sentinel_session *s)
{
	s->notifier.ops = &notifier_ops;
	return mmu_notifier_register(&s->notifier, s->mm);
}

/* Waits until no callback runs; also works after the process has exited. */
void sentinel_notify_unregister(struct sentinel_session *s)
{
	mmu_notifier_unregister(&s->notifier, s->mm);
}

/*
 * Pages move to [new_addr, new_addr + len) and keep their protection: arguments
 * 3 and 4 of the function; argument 2 is the VMA.
 */
static void pages_move(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
		       struct ftrace_regs *fregs)
{
	struct vm_area_struct *vma = (struct vm_area_struct *)sentinel_ftrace_argument(fregs, 2);
	unsigned long start = sentinel_ftrace_argument(fregs, 3);
	struct sentinel_session *s;

	rcu_read_lock();
	s = sentinel_session_find(vma->vm_mm);
	if (s)
		sentinel_note_change(s, start, start + sentinel_ftrace_argument(fregs, 4),
				     SENTINEL_CHANGE_MAPS);
	rcu_read_unlock();
}

static struct ftrace_ops move_ops = {
	.func = pages_move,
	.flags = FTRACE_OPS_FL_PERMANENT,
};

/* If it fails, only pages that mremap() moves into an armed range are missed. */
void sentinel_notify_hook_attach(void)
{
	char function[] = SENTINEL_MOVE_PAGE_TABLES;

	if (hooked || !*function || ftrace_set_filter(&move_ops, function, strlen(function), 1))
		return;
	hooked = !register_ftrace_function(&move_ops);
}

void sentinel_notify_hook_detach(void)
{
	if (hooked)
		unregister_ftrace_function(&move_ops);
	ftrace_free_filter(&move_ops);
}

bool sentinel_notify_hooked(void)
{
	return hooked;
}
