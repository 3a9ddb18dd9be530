// SPDX-License-Identifier: GPL-2.0-only
/* Finds the process that ATTACH names, and checks that it is the expected one. */
#include "sentinel.h"

#include <linux/cred.h>
#include <linux/math64.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/time_namespace.h>
#include <linux/uidgid.h>

#define TICK_NSEC_OF_USER (NSEC_PER_SEC / USER_HZ)

/* Returns the time at which the process started, as /proc/PID/stat shows it to the caller. */
static u64 start_ticks(const struct task_struct *task)
{
	return div_u64(timens_add_boottime_ns(task->start_boottime), TICK_NSEC_OF_USER);
}

/* Returns true if all four user ids of the task equal uid. */
static bool owned(struct task_struct *task, kuid_t uid)
{
	const struct cred *cred;
	bool same;

	rcu_read_lock();
	cred = __task_cred(task);
	same = uid_eq(cred->uid, uid) && uid_eq(cred->euid, uid) && uid_eq(cred->suid, uid) &&
	       uid_eq(cred->fsuid, uid);
	rcu_read_unlock();
	return same;
}

/*
 * Returns the address space if the task's owner is the expected one and the task is
 * dumpable, else ERR_PTR. exec() replaces the address space first and the credentials
 * later, both under exec_update_lock. If this lock is not free, returns -EAGAIN instead of
 * waiting, because exec() also closes files under it, which can take a long time.
 */
static struct mm_struct *checked_mm(struct task_struct *task, kuid_t uid)
{
	struct mm_struct *mm;

	if (!down_read_trylock(&task->signal->exec_update_lock))
		return ERR_PTR(-EAGAIN);
	mm = get_task_mm(task);
	if (!mm) {
		mm = ERR_PTR(-ESRCH);
	} else if (!owned(task, uid) || !sentinel_dumpable(task, mm)) {
		mmput_async(mm);
		mm = ERR_PTR(-EPERM);
	}
	up_read(&task->signal->exec_update_lock);
	return mm;
}

/* Returns the process's address space, to be released with mmput_async(), or ERR_PTR. */
struct mm_struct *sentinel_process_mm(const struct sentinel_attach *attach, pid_t *tgid)
{
	kuid_t uid = make_kuid(current_user_ns(), attach->uid);
	struct mm_struct *mm;
	struct task_struct *task;
	struct pid *ref;

	if (!uid_valid(uid))
		return ERR_PTR(-EINVAL);
	ref = find_get_pid(attach->pid);
	task = get_pid_task(ref, PIDTYPE_TGID);
	put_pid(ref);
	if (!task)
		return ERR_PTR(-ESRCH);
	*tgid = task_tgid_nr(task);
	if (task->flags & PF_KTHREAD)
		mm = ERR_PTR(-EPERM);
	else if (start_ticks(task) != attach->start_ticks)
		mm = ERR_PTR(-ESRCH);
	else
		mm = checked_mm(task, uid);
	put_task_struct(task);
	return mm;
}
