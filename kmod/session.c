// SPDX-License-Identifier: GPL-2.0-only
/* The life of a session, from ATTACH to the daemon's close. */
#include "sentinel.h"

#include <linux/capability.h>
#include <linux/module.h>
#include <linux/nodemask.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

/*
 * The target can hold its mmap_lock arbitrarily long: one of its threads may hold the
 * lock while it waits for a FUSE server of the same user. So a session ends in a
 * workqueue, and close() waits no longer than CLOSE_WAIT for the end.
 */
#define CLOSE_WAIT (2 * HZ)
#define RETRY_MIN msecs_to_jiffies(10)
#define RETRY_MAX msecs_to_jiffies(250)

/* Pins the process's mm_struct, not its address space, and registers an MMU notifier. */
static int watch_mm(struct sentinel_session *s, const struct sentinel_attach *attach)
{
	struct mm_struct *mm = sentinel_process_mm(attach, &s->tgid);
	int ret;

	if (IS_ERR(mm))
		return PTR_ERR(mm);
	mmgrab(mm);
	s->mm = mm;
	ret = sentinel_notify_register(s);
	mmput_async(mm);
	return ret;
}

static void destroy(struct sentinel_session *s)
{
	kfree(s->resident);
	if (s->mm)
		mmdrop(s->mm);
	kfree(s);
}

/*
 * Disarms all pages and withdraws the session. Returns false if a lock is not free: the
 * function does not wait for it, because the target may hold it. The caller tries again later.
 */
static bool disarm_and_withdraw(struct sentinel_session *s)
{
	if (!mutex_trylock(&s->control))
		return false;
	if (mmget_not_zero(s->mm)) {
		if (!mmap_read_trylock(s->mm)) {
			mmput_async(s->mm);
			mutex_unlock(&s->control);
			return false;
		}
		sentinel_disarm_all(s);
		sentinel_session_leave(s);
	}
	sentinel_session_withdraw(s);
	sentinel_notify_unregister(s);

	INIT_LIST_HEAD(&s->dirty);
	sentinel_area_drop_all(s);
	atomic_long_set(&s->armed_pages, 0);
	mmdrop(s->mm);
	s->mm = NULL;
	mutex_unlock(&s->control);
	return true;
}

/*
 * Disarms everything and releases the target. The session is withdrawn only
 * after all PTEs are restored: until then the hook must resolve faults. Otherwise
 * the kernel would assume that NUMA balancing made an entry PROT_NONE, and might migrate
 * the page.
 */
static void end(struct work_struct *work)
{
	struct sentinel_session *s =
		container_of(to_delayed_work(work), struct sentinel_session, end_work);

	sentinel_rearm_stop(s);
	if (!disarm_and_withdraw(s)) {
		s->retry = clamp(2 * s->retry, RETRY_MIN, RETRY_MAX);
		sentinel_queue_later(&s->end_work, s->retry);
		return;
	}
	sentinel_log_put(s);
	/* after module_put() the module can be unloaded, but sentinel_exit() waits for this work */
	module_put(THIS_MODULE);
	complete_all(&s->has_ended);
	sentinel_session_put(s);
	sentinel_hook_put();
}

/*
 * Creates a session for a process; returns ERR_PTR on failure. The caller's file table
 * owns the session. The session holds references to the hook and the module until it has
 * ended.
 */
struct sentinel_session *sentinel_session_attach(const struct sentinel_attach *attach)
{
	struct sentinel_session *s;
	int ret;

	s = kzalloc(sizeof(*s), GFP_KERNEL);
	if (!s)
		return ERR_PTR(-ENOMEM);
	kref_init(&s->refs);
	mutex_init(&s->control);
	spin_lock_init(&s->lock);
	INIT_LIST_HEAD(&s->dirty);
	INIT_DELAYED_WORK(&s->end_work, end);
	init_completion(&s->has_ended);
	s->owner = current->files;
	s->epoch = 1;
	ret = -ENOMEM;
	s->resident = kcalloc(nr_node_ids, sizeof(*s->resident), GFP_KERNEL);
	if (!s->resident)
		goto fail;
	ret = sentinel_log_create(s, attach->log_records);
	if (ret)
		goto fail;
	s->precise_writes = attach->flags & SENTINEL_ATTACH_PRECISE_WRITE;
	ret = watch_mm(s, attach);
	if (ret)
		goto fail_log;
	ret = sentinel_hook_get();
	if (ret)
		goto fail_notify;
	ret = sentinel_session_publish(s);
	if (ret)
		goto fail_hook;
	__module_get(THIS_MODULE);
	kref_get(&s->refs); /* for end() */
	sentinel_rearm_start(s, attach->rearm_us);
	return s;
fail_hook:
	sentinel_hook_put();
fail_notify:
	sentinel_notify_unregister(s);
fail_log:
	sentinel_log_put(s);
	sentinel_log_put(s);
fail:
	destroy(s);
	return ERR_PTR(ret);
}

/*
 * Ends the session, and waits at most CLOSE_WAIT for the end. If the target holds its
 * mmap_lock for longer, its pages stay armed, and the hook resolves their faults, until
 * the lock is free.
 */
void sentinel_session_end(struct sentinel_session *s)
{
	if (test_and_set_bit(SENTINEL_ENDING, &s->state))
		return;
	sentinel_queue_later(&s->end_work, 0);
	wait_for_completion_timeout(&s->has_ended, CLOSE_WAIT);
}

/* Returns true once sentinel_session_end() has been called, also after the session has ended. */
bool sentinel_session_ending(struct sentinel_session *s)
{
	return test_bit(SENTINEL_ENDING, &s->state);
}

/*
 * Locks s->control for a request from user space. Returns -ESRCH if the session is ending, and
 * -EINTR after a fatal signal. end() only tries to lock s->control. If an ending session did not
 * refuse requests with -ESRCH, a target whose threads begin epochs all the time could keep the
 * lock taken, so that its session never ends.
 */
int sentinel_session_lock(struct sentinel_session *s)
{
	if (sentinel_session_ending(s))
		return -ESRCH;
	if (mutex_lock_killable(&s->control))
		return -EINTR;
	if (!sentinel_session_ending(s))
		return 0;
	/* the session began to end while this task waited; after the end, s->mm is NULL */
	mutex_unlock(&s->control);
	return -ESRCH;
}

static void session_free(struct kref *refs)
{
	destroy(container_of(refs, struct sentinel_session, refs));
}

void sentinel_session_put(struct sentinel_session *s)
{
	kref_put(&s->refs, session_free);
}
