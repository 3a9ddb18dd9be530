// SPDX-License-Identifier: GPL-2.0-only
/* Finds the session of an address space, and makes walks over the address space safe. */
#include "sentinel.h"

#include <linux/hashtable.h>
#include <linux/sched/mm.h>

static DEFINE_HASHTABLE(sessions, 6);
static DEFINE_MUTEX(sessions_mutex); /* serializes changes of the hash table */
static unsigned int session_count;

/*
 * Returns the session of an address space, or NULL; the caller holds the RCU read lock.
 * Runs at every page fault.
 */
struct sentinel_session *sentinel_session_find(struct mm_struct *mm)
{
	struct sentinel_session *s;

	if (!READ_ONCE(session_count))
		return NULL;
	hash_for_each_possible_rcu(sessions, s, hash, (unsigned long)mm) {
		if (s->mm == mm)
			return s;
	}
	return NULL;
}

unsigned int sentinel_session_count(void)
{
	return READ_ONCE(session_count);
}

/*
 * Makes the session visible to sentinel_session_find(). Returns -EBUSY if the address space
 * already has a session.
 */
int sentinel_session_publish(struct sentinel_session *s)
{
	int ret = 0;

	mutex_lock(&sessions_mutex);
	rcu_read_lock();
	if (sentinel_session_find(s->mm))
		ret = -EBUSY;
	rcu_read_unlock();
	if (!ret) {
		hash_add_rcu(sessions, &s->hash, (unsigned long)s->mm);
		WRITE_ONCE(session_count, session_count + 1);
	}
	mutex_unlock(&sessions_mutex);
	return ret;
}

/* Undoes sentinel_session_publish() and waits until no fault uses the session any more. */
void sentinel_session_withdraw(struct sentinel_session *s)
{
	mutex_lock(&sessions_mutex);
	hash_del_rcu(&s->hash);
	WRITE_ONCE(session_count, session_count - 1);
	mutex_unlock(&sessions_mutex);
	synchronize_rcu();
}

/*
 * Makes the target's address space safe to walk; the session is locked by
 * sentinel_session_lock(). Returns -ESRCH if the target has exited or called exec, and -EINTR
 * after a fatal signal.
 */
int sentinel_session_enter(struct sentinel_session *s)
{
	if (!mmget_not_zero(s->mm))
		return -ESRCH;
	if (mmap_read_lock_killable(s->mm)) {
		mmput_async(s->mm);
		return -EINTR;
	}
	return 0;
}

void sentinel_session_leave(struct sentinel_session *s)
{
	mmap_read_unlock(s->mm);
	mmput_async(s->mm);
}
