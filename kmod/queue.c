// SPDX-License-Identifier: GPL-2.0-only
/* The module's workqueue: runs functions that may wait, for callers that must not wait. */
#include "sentinel.h"

static struct workqueue_struct *queue;

int sentinel_queue_init(void)
{
	queue = alloc_workqueue("sentinel", WQ_UNBOUND, 0);
	return queue ? 0 : -ENOMEM;
}

/* Waits for running functions; the caller ensures that no delayed function is pending. */
void sentinel_queue_exit(void)
{
	destroy_workqueue(queue);
}

void sentinel_queue(struct work_struct *work)
{
	queue_work(queue, work);
}

void sentinel_queue_later(struct delayed_work *work, unsigned long delay)
{
	queue_delayed_work(queue, work, delay);
}
