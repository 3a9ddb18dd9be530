// SPDX-License-Identifier: GPL-2.0-only
/* /dev/sentinel: validates requests from user space and dispatches them. */
#include "sentinel.h"

#include <linux/fdtable.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/page_table_check.h>
#include <linux/uaccess.h>

static struct sentinel_session *session_of(struct file *file)
{
	/* pairs with the cmpxchg() in ioctl_attach() */
	return smp_load_acquire(&file->private_data);
}

static bool is_zero(const void *words, size_t bytes)
{
	return !memchr_inv(words, 0, bytes);
}

static long ioctl_info(void __user *arg)
{
	struct sentinel_info info = {
		.version = SENTINEL_UAPI_VERSION,
		.features = sentinel_hook_features(),
		.page_bytes = PAGE_SIZE,
		.sessions = sentinel_session_count(),
	};

	return copy_to_user(arg, &info, sizeof(info)) ? -EFAULT : 0;
}

/* Ends a session that no open /dev/sentinel file refers to. */
static void release(struct sentinel_session *s)
{
	sentinel_session_end(s);
	sentinel_log_put(s);
	sentinel_session_put(s);
}

static long ioctl_attach(struct file *file, void __user *arg)
{
	struct sentinel_attach attach;
	struct sentinel_session *s;

	if (copy_from_user(&attach, arg, sizeof(attach)))
		return -EFAULT;
	if ((attach.flags & ~SENTINEL_ATTACH_PRECISE_WRITE) ||
	    !is_zero(attach.reserved, sizeof(attach.reserved)))
		return -EINVAL;
	if (attach.rearm_us &&
	    (attach.rearm_us < SENTINEL_REARM_US_MIN || attach.rearm_us > SENTINEL_REARM_US_MAX))
		return -EINVAL;
	if (!capable(CAP_SYS_PTRACE))
		return -EPERM;
	if (session_of(file))
		return -EBUSY;
	s = sentinel_session_attach(&attach);
	if (IS_ERR(s))
		return PTR_ERR(s);
	if (cmpxchg(&file->private_data, NULL, s)) {
		release(s);
		return -EBUSY;
	}
	return 0;
}

/* Does the part of a range ioctl that walks page tables; s->control and mmap_lock are held. */
static int walk_range(struct sentinel_session *s, struct sentinel_area *area, unsigned int cmd,
		      struct sentinel_range *range)
{
	int ret;

	if (cmd == SENTINEL_IOC_ARM)
		return sentinel_arm(s, area, range);
	if (cmd == SENTINEL_IOC_AGE)
		return sentinel_age(s, area, range);
	ret = sentinel_disarm(s, area, range);
	if (!ret && cmd == SENTINEL_IOC_REMOVE_RANGE)
		sentinel_epoch_settle(s, area);
	return ret;
}

/* Carries out a range ioctl whose arguments are valid; s->control is held. */
static int do_range(struct sentinel_session *s, unsigned int cmd, struct sentinel_range *range)
{
	unsigned long end = range->start + range->bytes;
	struct sentinel_area *area;
	int ret;

	if (!atomic_read(&s->mm->mm_users))
		return -ESRCH;
	if (cmd == SENTINEL_IOC_ADD_RANGE)
		return sentinel_area_add(s, range->start, end);
	area = sentinel_area_find(s, range->start);
	if (!area || end > area->end)
		return -ENOENT;
	if (cmd == SENTINEL_IOC_REMOVE_RANGE && (range->start != area->start || end != area->end))
		return -ENOENT;
	ret = sentinel_session_enter(s);
	if (ret)
		return ret;
	ret = walk_range(s, area, cmd, range);
	sentinel_session_leave(s);
	if (!ret && cmd == SENTINEL_IOC_REMOVE_RANGE)
		sentinel_area_drop(s, area);
	return ret;
}

static long ioctl_range(struct sentinel_session *s, unsigned int cmd, void __user *arg)
{
	struct sentinel_range range;
	int ret;

	if (copy_from_user(&range, arg, sizeof(range)))
		return -EFAULT;
	if (!is_zero(range.reserved, sizeof(range.reserved)) || !range.bytes ||
	    !PAGE_ALIGNED(range.start) || !PAGE_ALIGNED(range.bytes) ||
	    range.start >= TASK_SIZE_MAX || range.bytes > TASK_SIZE_MAX - range.start)
		return -EINVAL;
	range.pages_done = 0;
	range.pages_skipped = 0;
	ret = sentinel_session_lock(s);
	if (ret)
		return ret;
	ret = do_range(s, cmd, &range);
	mutex_unlock(&s->control);
	if (!ret && copy_to_user(arg, &range, sizeof(range)))
		ret = -EFAULT;
	return ret;
}

static long ioctl_stats(struct sentinel_session *s, void __user *arg)
{
	struct sentinel_stats stats = {};

	spin_lock(&s->lock);
	stats.hits = s->hits;
	stats.births = s->births;
	stats.lost = s->lost;
	stats.passed_on = s->passed_on;
	stats.unarmed = s->unarmed;
	stats.rearms = s->rearms;
	spin_unlock(&s->lock);
	stats.armed_pages = atomic_long_read(&s->armed_pages);
	return copy_to_user(arg, &stats, sizeof(stats)) ? -EFAULT : 0;
}

static long ioctl_epoch_fd(struct sentinel_session *s, void __user *arg)
{
	struct sentinel_epoch_fd out = {};
	struct file *file;

	if (sentinel_session_ending(s))
		return -ESRCH;
	out.fd = get_unused_fd_flags(O_CLOEXEC);
	if (out.fd < 0)
		return out.fd;
	if (copy_to_user(arg, &out, sizeof(out))) {
		put_unused_fd(out.fd);
		return -EFAULT;
	}
	file = sentinel_epoch_file(s);
	if (IS_ERR(file)) {
		put_unused_fd(out.fd);
		return PTR_ERR(file);
	}
	fd_install(out.fd, file);
	return 0;
}

/*
 * No handler accesses user memory while it holds a lock. The process that owns the
 * memory can make a fault on the memory last arbitrarily long, for example with
 * userfaultfd, and other callers may wait for the lock all that time.
 */
static long sentinel_ioctl(struct file *file, unsigned int cmd, unsigned long argument)
{
	void __user *arg = (void __user *)argument;
	struct sentinel_session *s;

	if (cmd == SENTINEL_IOC_INFO)
		return ioctl_info(arg);
	if (cmd == SENTINEL_IOC_ATTACH)
		return ioctl_attach(file, arg);
	s = session_of(file);
	if (!s)
		return -ENOTCONN;
	switch (cmd) {
	case SENTINEL_IOC_ADD_RANGE:
	case SENTINEL_IOC_REMOVE_RANGE:
	case SENTINEL_IOC_ARM:
	case SENTINEL_IOC_DISARM:
	case SENTINEL_IOC_AGE:
		return ioctl_range(s, cmd, arg);
	case SENTINEL_IOC_EPOCH:
		return sentinel_epoch_ioctl(s, arg, false);
	case SENTINEL_IOC_EPOCH_FD:
		return ioctl_epoch_fd(s, arg);
	case SENTINEL_IOC_STATS:
		return ioctl_stats(s, arg);
	default:
		return -ENOTTY;
	}
}

static int sentinel_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct sentinel_session *s = session_of(file);

	return s ? sentinel_log_mmap(s, vma) : -ENOTCONN;
}

static int sentinel_open(struct inode *inode, struct file *file)
{
	file->private_data = NULL; /* misc_open() stored the device there */
	return 0;
}

static int is_file(const void *file, struct file *other, unsigned int fd)
{
	return file == other;
}

/*
 * Called at every close(), after the descriptor is removed. The session ends when
 * the process that called ATTACH closes its last descriptor of the file, even if a
 * mapping of the log or a forked child keeps the file open. The exit of that process
 * also ends the session. At exit, the file table is no longer current->files and may
 * still list closed files, so the table is not searched.
 */
static int sentinel_flush(struct file *file, fl_owner_t owner)
{
	struct sentinel_session *s = session_of(file);

	if (!s || s->owner != owner)
		return 0;
	if (current->files != owner || !iterate_fd(current->files, 0, is_file, file))
		sentinel_session_end(s);
	return 0;
}

static int sentinel_release(struct inode *inode, struct file *file)
{
	struct sentinel_session *s = session_of(file);

	if (s)
		release(s);
	return 0;
}

static const struct file_operations sentinel_fops = {
	.owner = THIS_MODULE,
	.open = sentinel_open,
	.flush = sentinel_flush,
	.release = sentinel_release,
	.mmap = sentinel_mmap,
	.unlocked_ioctl = sentinel_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};

static struct miscdevice sentinel_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "sentinel",
	.fops = &sentinel_fops,
	.mode = 0600,
};

/*
 * Returns true if the kernel counts the page-table entries that map each page. This is fixed at
 * boot. The module changes entries without updating the counts, so the kernel would stop with a
 * BUG when it frees a page that was armed.
 */
static bool __init page_tables_are_checked(void)
{
#ifdef CONFIG_PAGE_TABLE_CHECK
	return !static_key_enabled(&page_table_check_disabled);
#else
	return false;
#endif
}

static int __init sentinel_init(void)
{
	int ret;

	if (cpu_feature_enabled(X86_FEATURE_XENPV)) {
		pr_err("Xen PV is not supported: the hypervisor owns the page tables\n");
		return -ENODEV;
	}
	if (page_tables_are_checked()) {
		pr_err("page table checks (CONFIG_PAGE_TABLE_CHECK) are not supported: boot with page_table_check=off\n");
		return -ENODEV;
	}
	ret = sentinel_queue_init();
	if (ret)
		return ret;
	ret = sentinel_hook_init();
	if (ret)
		goto fail_queue;
	ret = misc_register(&sentinel_device);
	if (ret)
		goto fail_hook;
	return 0;
fail_hook:
	sentinel_hook_exit();
fail_queue:
	sentinel_queue_exit();
	return ret;
}

static void __exit sentinel_exit(void)
{
	misc_deregister(&sentinel_device);
	sentinel_queue_exit();
	sentinel_hook_exit();
}

module_init(sentinel_init);
module_exit(sentinel_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Samples page accesses of selected processes by page protection");
MODULE_VERSION("3");
