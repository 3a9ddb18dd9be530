// SPDX-License-Identifier: GPL-2.0-only
/* The life of a session, from ATTACH to the daemon's close. */
#include "sentinel.h"

#include <linux/capability.h>
#include <linux/nodemask.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/sched/task.h>
#include <linux/slab.h>

/* Pins the address space of a process and registers with its MMU notifiers. */
static int watch_mm(struct sentinel_session *s, pid_t pid)
{
	struct mm_struct *mm = NULL;
	struct task_struct *task;
	struct pid *ref;
	int ret;

	ref = find_get_pid(pid);
	task = get_pid_task(ref, PIDTYPE_PID);
	put_pid(ref);
	if (task) {
		s->tgid = task_tgid_nr(task);
		mm = get_task_mm(task);
		put_task_struct(task);
	}
	if (!mm)
		return -ESRCH;
	mmgrab(mm);
	s->mm = mm;
	ret = sentinel_notify_register(s);
	mmput_async(mm);
	return ret;
}

static void destroy(struct sentinel_session *s)
{
	sentinel_log_free(s);
	kfree(s->resident);
	if (s->mm)
		mmdrop(s->mm);
	kfree(s);
}

/* Creates a session for a process, owned by the caller's file table; or ERR_PTR. */
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
	ret = watch_mm(s, attach->pid);
	if (ret)
		goto fail;
	ret = sentinel_session_publish(s);
	if (ret) {
		sentinel_notify_unregister(s);
		goto fail;
	}
	sentinel_rearm_start(s, attach->rearm_us);
	return s;
fail:
	destroy(s);
	return ERR_PTR(ret);
}

/*
 * Disarms everything and releases the target. The session is withdrawn only
 * after all PTEs are restored: until then the hook must resolve faults, since
 * the kernel would take PROT_NONE for NUMA balancing and migrate the page.
 */
void sentinel_session_end(struct sentinel_session *s)
{
	sentinel_rearm_stop(s);
	mutex_lock(&s->control);
	if (s->ended)
		goto out;
	s->ended = true;
	if (mmget_not_zero(s->mm)) {
		mmap_read_lock(s->mm);
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
out:
	mutex_unlock(&s->control);
}

static void session_free(struct kref *refs)
{
	destroy(container_of(refs, struct sentinel_session, refs));
}

void sentinel_session_put(struct sentinel_session *s)
{
	kref_put(&s->refs, session_free);
}
