/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * sentinel: the interface between the kernel module and user space.
 *
 * One open file of /dev/sentinel is one session: the daemon attaches the file to
 * one process, adds page ranges, arms and disarms them, and maps the access log.
 * When the process that called ATTACH closes its last descriptor of the file, or
 * dies, everything is disarmed, even if a forked child or a mapping still holds
 * the file. If the attached process keeps its address space locked at that time,
 * close() returns after two seconds, and the pages are disarmed when the lock is free. The
 * attached process holds only an epoch fd, which can only start the next epoch.
 *
 * All addresses and lengths are in bytes and page-aligned. New fields of the
 * structures will use only the reserved words, which must be zero.
 *
 * Errors:
 *   EINVAL    a value is out of bounds, not aligned, or not zero as required
 *   EPERM     the caller lacks CAP_SYS_PTRACE; or the process does not belong to the
 *             expected user, is not dumpable (it has changed its user, or executes a
 *             program that the user may not read), or is a kernel thread
 *   EAGAIN    the process is in the middle of exec()
 *   ENOTCONN  the call needs a session, but ATTACH has not been called
 *   EBUSY     the process or this file has a session already, or ATTACH was called
 *             while kernel.ftrace_enabled is 0
 *   ESRCH     no process has this pid and start time, or the attached process has
 *             exited or called exec, or the process that called ATTACH has closed its
 *             last descriptor of the file
 *   EINTR     a fatal signal arrived while the call waited
 *   EEXIST    ranges overlap
 *   ENOENT    the range was not added, or is not a part of an added range
 *   ENOSPC    more than 64 ranges
 *   E2BIG     more than 4 TiB in all ranges
 *   ENOMEM    out of memory
 *   EFAULT    the argument is not in accessible memory
 *   ENOTTY    no such ioctl
 */
#ifndef SENTINEL_UAPI_H
#define SENTINEL_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define SENTINEL_UAPI_VERSION 3

/*
 * sentinel_info.features. INFO itself hooks nothing: page faults are hooked only from
 * the first ATTACH until the last session ends. So before the first ATTACH, SKIP and
 * UNKNOWN are set if they are expected to work. Afterwards, they are set if they
 * worked when page faults were last hooked: another user of ftrace (a livepatch)
 * may prevent SKIP.
 * INFO cannot tell whether ATTACH will return EBUSY because of kernel.ftrace_enabled.
 */
#define SENTINEL_FEATURE_SKIP (1u << 0) /* the module resolves faults without handle_mm_fault() */
#define SENTINEL_FEATURE_BIRTHS (1u << 1) /* first touches of absent pages are logged */
#define SENTINEL_FEATURE_UNKNOWN (1u << 2) /* pages unarmed by other code are logged */
#define SENTINEL_FEATURE_PRECISE_WRITE (1u << 3) /* SENTINEL_ATTACH_PRECISE_WRITE is supported */
#define SENTINEL_FEATURE_REARM (1u << 4) /* sentinel_attach.rearm_us is supported */
#define SENTINEL_FEATURE_AGE (1u << 5) /* SENTINEL_IOC_AGE is supported */
#define SENTINEL_FEATURE_HUGE (1u << 6) /* huge pages can be armed, each as a whole */

struct sentinel_info {
	__u32 version;
	__u32 features;
	__u32 page_bytes;
	__u32 sessions;
	__u64 reserved[4];
};

/* sentinel_attach.flags */
/* also log a write that follows a read in the same epoch, at the cost of a second fault */
#define SENTINEL_ATTACH_PRECISE_WRITE (1u << 0)

#define SENTINEL_REARM_US_MIN 1000
#define SENTINEL_REARM_US_MAX 10000000

/*
 * Names a process by its pid and the time at which it started. Modules cannot use
 * pidfds, because the kernel exports neither pidfd_get_task() nor pidfd_pid(), and
 * the type of a pidfd's file differs between kernels. A caller with a pidfd reads
 * the start time and then checks that the pidfd's process is alive. If it is, pid
 * and start_ticks name this process and no other.
 */
struct sentinel_attach {
	__s32 pid; /* id of the process, not of a thread, in the caller's namespace */
	__u32 flags;
	__u64 log_records; /* a power of two, 4096 .. 2^24 */
	__u32 rearm_us; /* period of re-arming touched pages within an epoch; 0: never */
	__u32 uid; /* expected real, effective, saved and fs uid, in the caller's namespace */
	__u64 start_ticks; /* field 22 of /proc/PID/stat */
	__u64 reserved[2];
};

/*
 * The argument of ADD_RANGE and REMOVE_RANGE, and of ARM, DISARM and AGE, which also
 * accept a part of an added range.
 */
struct sentinel_range {
	__u64 start;
	__u64 bytes;
	/*
	 * The next two fields are outputs. ARM skips absent pages, but watches them for their
	 * first touch. A page that was armed before ARM, or was accessed in this epoch (and will
	 * be armed by the next epoch), is counted in neither field.
	 */
	__u64 pages_done; /* pages armed, disarmed or found accessed */
	/* ARM: absent or not armable; DISARM: not armed; AGE: see SENTINEL_IOC_AGE */
	__u64 pages_skipped;
	__u64 reserved[2];
};

/* sentinel_epoch.flags, in */
#define SENTINEL_EPOCH_RESIDENCY (1u << 0) /* log the number of resident pages on each node */

struct sentinel_epoch {
	__u32 flags;
	__u32 epoch; /* out: the epoch that begins; ATTACH begins epoch 1 */
	__u64 rearmed_pages; /* out: number of pages armed when the epoch began */
	__u64 reserved[2];
};

struct sentinel_stats {
	/*
	 * accesses to watched pages, births excluded; an access that is logged as AGAIN counts
	 * only if it is to a huge page
	 */
	__u64 hits;
	__u64 births; /* first touches of absent pages in armed ranges */
	__u64 lost; /* records lost: the log was full, or an allocation failed */
	__u64 armed_pages; /* number of pages that are armed now */
	__u64 passed_on; /* faults that the kernel had to resolve, births excluded */
	__u64 unarmed; /* pages logged as UNKNOWN */
	__u64 rearms; /* rounds of re-arming within epochs */
	__u64 reserved[9];
};

struct sentinel_epoch_fd {
	__s32 fd; /* out: O_CLOEXEC, bound to the attached process's address space */
	__u32 reserved[3];
};

#define SENTINEL_IOC_MAGIC 0xE5
#define SENTINEL_IOC_INFO _IOR(SENTINEL_IOC_MAGIC, 0x00, struct sentinel_info)
#define SENTINEL_IOC_ATTACH _IOW(SENTINEL_IOC_MAGIC, 0x01, struct sentinel_attach)
#define SENTINEL_IOC_ADD_RANGE _IOWR(SENTINEL_IOC_MAGIC, 0x02, struct sentinel_range)
#define SENTINEL_IOC_REMOVE_RANGE _IOWR(SENTINEL_IOC_MAGIC, 0x03, struct sentinel_range)
#define SENTINEL_IOC_ARM _IOWR(SENTINEL_IOC_MAGIC, 0x04, struct sentinel_range)
#define SENTINEL_IOC_DISARM _IOWR(SENTINEL_IOC_MAGIC, 0x05, struct sentinel_range)
/*
 * The only ioctl of an epoch fd. There it fails with EXDEV if the caller is not the attached
 * process, and with ESRCH if the session is ending or has ended.
 */
#define SENTINEL_IOC_EPOCH _IOWR(SENTINEL_IOC_MAGIC, 0x06, struct sentinel_epoch)
#define SENTINEL_IOC_EPOCH_FD _IOR(SENTINEL_IOC_MAGIC, 0x07, struct sentinel_epoch_fd)
#define SENTINEL_IOC_STATS _IOR(SENTINEL_IOC_MAGIC, 0x08, struct sentinel_stats)
/*
 * Measures page temperature in a part of a range, without causing faults. If a page's
 * accessed bit is set, AGE logs the page with the flag AGED and clears the bit. pages_done
 * counts these pages. pages_skipped counts pages that are absent, not anonymous, or not accessed
 * since the last AGE. The kernel's reclaim reads the accessed bits, too. So after AGE, pages look
 * colder to reclaim than they are.
 */
#define SENTINEL_IOC_AGE _IOWR(SENTINEL_IOC_MAGIC, 0x09, struct sentinel_range)

/*
 * The access log: mmap(NULL, SENTINEL_LOG_OFFSET + log_records * 16, READ|WRITE,
 * SHARED, fd, 0) after ATTACH. The module appends records and advances head; the
 * daemon advances tail. Both counters only grow: a record's position in the ring is
 * counter & (records - 1). If the log is full, new records are dropped and counted
 * in lost.
 *
 * In each epoch, the first access to a page adds one record. Two options add further records:
 *   precise writes   a record with WRITE and AGAIN for the first write after a read
 *   rearm_us         a record with AGAIN for each rearm_us period with another access to the page,
 *                    but none before the first EPOCH. If the log is at least half full, an AGAIN
 *                    record without further flags is left out and does not count as lost.
 *
 * The record of an access to a present page is appended at the access, with the node that
 * served it. If the kernel had to resolve an access (a birth, or an access to a page in swap
 * or under migration), the access's record is appended later: before the page's mapping
 * changes again, or else at the end of the epoch. This record has the page's node at the time
 * of the append (255 if the page is gone or is the zero page). Because such records come late,
 * the log is not sorted by epoch. With precise writes, if the kernel has to resolve a write
 * after a recorded read, the write's record is appended at the access, with node 255.
 *
 * The module may miss accesses to a page that other code unarms (mprotect, migration, a
 * collapse, mremap) or that cannot be armed (the zero page, pages that are not anonymous).
 * At the end of the epoch, such a page is logged as UNKNOWN if no access was seen. With precise
 * writes, it is logged as UNKNOWN and AGAIN if an access was seen but a later write may have been
 * missed. The page is then armed for the next epoch. If it cannot be armed, it is logged as UNKNOWN
 * again when that epoch ends.
 *
 * When an epoch has ended, its records are complete: if they contain no record of a page of an
 * armed range, the page was not accessed in the epoch. There are three exceptions: records were
 * lost; an access was of a kind that the module does not see; or the page was disarmed for a part
 * of the epoch.
 *
 * The module sees only accesses by the CPU: those in user mode, and the kernel's copies
 * from and to user space. Direct I/O and process_vm_readv() can reach a page without a
 * fault; the module does not see such an access.
 *
 * With SENTINEL_EPOCH_RESIDENCY, the module appends one residency record for each node
 * with memory when an epoch begins. Such a record is not an access: `page` holds the number of
 * resident pages on `node`, and `epoch` is the number of the epoch that begins.
 */
#define SENTINEL_LOG_OFFSET 4096

struct sentinel_log {
	__u64 head; /* complete records appended so far */
	__u64 tail; /* records that the daemon has read so far */
	__u64 lost;
	__u64 records;
	__u32 epoch; /* the current epoch */
	__u32 record_bytes;
};

/* sentinel_access.flags */
#define SENTINEL_ACCESS_WRITE (1u << 0)
#define SENTINEL_ACCESS_BIRTH (1u << 1) /* the page was absent, or a write hit the zero page */
#define SENTINEL_ACCESS_UNKNOWN (1u << 2) /* an access may have been missed; with AGAIN: a write */
#define SENTINEL_ACCESS_AGAIN (1u << 3) /* not the page's first record in this epoch */
#define SENTINEL_ACCESS_AGED (1u << 4) /* accessed since the last AGE, in any epoch */
#define SENTINEL_ACCESS_RESIDENCY (1u << 7) /* not an access, but a residency record (see above) */

struct sentinel_access {
	__u64 page; /* virtual address / page_bytes */
	__u32 epoch;
	__u8 node; /* the page's node; 255: unknown */
	__u8 flags;
	__u16 more_pages; /* the record also covers this many pages after the page `page` */
};

#endif
