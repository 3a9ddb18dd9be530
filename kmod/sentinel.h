/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Declarations shared by the module's files.
 *
 * In comments, ATTACH, ARM, DISARM, EPOCH, AGE and so on are the ioctls of sentinel_uapi.h.
 *
 * A session watches one address space (mm), that of the process to which it is attached
 * (the target). The session's areas are the ranges that user space added. An area is
 * divided into chunks of 2 MiB; one page table maps one chunk. A chunk's structure is
 * allocated when it is first needed: when a page-table walk finds a page table or a huge
 * page in the chunk, when a page of the chunk is touched, when mremap() moves pages into
 * the chunk, or when only a part of the chunk is armed or disarmed.
 *
 * Locks, outermost first:
 *   session->control  serializes control operations (arm, disarm, epoch, ...)
 *   mmap_lock (read)  keeps the target's VMAs unchanged during a walk
 *   page-table lock   protects the PTEs and their armed bits
 *   session->lock     protects epoch, log, dirty list and all other bitmaps
 * No user memory is accessed while a lock is held. The target may hold its mmap_lock for a
 * long time, so a task that waits for this lock can be killed while it waits. The fault
 * hook takes only the last two locks. It finds sessions, areas and chunks under RCU; all
 * three are freed after a grace period.
 */
#ifndef SENTINEL_H
#define SENTINEL_H

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "compat.h"

#include <linux/bitmap.h>
#include <linux/completion.h>
#include <linux/kref.h>
#include <linux/hrtimer.h>
#include <linux/list.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>

#include "sentinel_uapi.h"

#define SENTINEL_CHUNK_SHIFT PMD_SHIFT
#define SENTINEL_CHUNK_PAGES PTRS_PER_PTE
#define SENTINEL_AREAS_MAX 64
/* limit on the size of all areas together; at this limit, the chunk pointers take 16 MiB */
#define SENTINEL_AREA_BYTES_MAX (4ULL << 40)
#define SENTINEL_NODE_UNKNOWN 255

struct sentinel_chunk {
	unsigned long base; /* address of the chunk's first page, which is bit 0 of the bitmaps */
	struct list_head dirty; /* entry in the list session->dirty, while queued is true */
	/* epoch in which the chunk was queued; accesses to the queued chunk belong to this epoch */
	u32 epoch;
	bool queued;
	/* the kernel handled faults in this chunk in this epoch and may have mapped pages */
	bool resolved;
	bool huge_armed; /* the module made the PMD entry PROT_NONE; guarded by the entry's lock */
	/* the page is watched, from ARM until DISARM */
	DECLARE_BITMAP(active, SENTINEL_CHUNK_PAGES);
	DECLARE_BITMAP(armed, SENTINEL_CHUNK_PAGES); /* the PTE is PROT_NONE until an access */
	DECLARE_BITMAP(touched, SENTINEL_CHUNK_PAGES); /* accessed in this epoch */
	DECLARE_BITMAP(late, SENTINEL_CHUNK_PAGES); /* touched, but not recorded yet */
	DECLARE_BITMAP(born, SENTINEL_CHUNK_PAGES); /* absent at its first access in this epoch */
	DECLARE_BITMAP(written, SENTINEL_CHUNK_PAGES); /* touched by at least one write */
	DECLARE_BITMAP(suspect, SENTINEL_CHUNK_PAGES); /* the page may be mapped, but not armed */
	DECLARE_BITMAP(lost, SENTINEL_CHUNK_PAGES); /* an access to the page may have been missed */
};

struct sentinel_area {
	unsigned long start;
	unsigned long end;
	unsigned long chunk_count;
	/* one bit per chunk: its pages are watched; used only until the chunk is allocated */
	unsigned long *active;
	struct sentinel_chunk **chunk;
	/*
	 * All parts that were armed in this epoch lie between these addresses; see
	 * sentinel_find_unarmed(). fresh_end is 0 if there are none. Guarded by `control`.
	 */
	unsigned long fresh_start;
	unsigned long fresh_end;
};

/* An immutable table, sorted by address; replaced as a whole. */
struct sentinel_areas {
	struct rcu_head rcu;
	unsigned int count;
	struct sentinel_area *area[];
};

#define SENTINEL_CHANGES_KEPT 8

/* A change that code outside this module is making to the target's mappings. */
struct sentinel_change {
	unsigned long start;
	unsigned long end;
};

enum sentinel_change_kind {
	SENTINEL_CHANGE_UNARMS, /* may unarm pages */
	SENTINEL_CHANGE_MAPS, /* may map pages that were never armed */
	SENTINEL_CHANGE_PROTECTS, /* only removes write permission */
};

#define SENTINEL_ENDING 0 /* bit of sentinel_session.state: end_work is queued, or has run */

struct sentinel_session {
	struct hlist_node hash;
	struct kref refs;
	struct mm_struct *mm; /* pinned by mmgrab() until the session ends */
	pid_t tgid;
	/*
	 * file table of the process that called ATTACH; when this process closes its last
	 * descriptor of the session's file, the session ends
	 */
	void *owner;
	unsigned long state; /* SENTINEL_ENDING */
	struct delayed_work end_work;
	unsigned long retry; /* delay of end_work, in jiffies */
	struct completion has_ended;
	struct mutex control;
	struct sentinel_areas __rcu *areas; /* writes are guarded by `control` */
	u64 *resident; /* temporary counts of resident pages by node; guarded by `control` */
	atomic_long_t armed_pages;
	bool precise_writes; /* a read restores an armed page read-only, so a later write faults */
	struct mmu_notifier notifier;
	ktime_t rearm_period; /* 0: only the next epoch arms touched pages again */
	struct hrtimer rearm_timer;
	struct work_struct rearm_work;

	spinlock_t lock;
	u32 epoch;
	struct list_head dirty;
	struct sentinel_change change[SENTINEL_CHANGES_KEPT];
	unsigned int changes; /* entries of change[] in use */
	unsigned int more_changes; /* number of changes in progress that do not fit into change[] */
	u64 hits;
	u64 births;
	u64 passed_on;
	u64 unarmed;
	u64 rearms;
	struct sentinel_log *log; /* shared with user space, so its values are not trusted */
	atomic_t log_users;
	struct sentinel_access *records;
	u64 record_count;
	u64 head;
	u64 lost;
};

/* queue.c */
int sentinel_queue_init(void);
void sentinel_queue_exit(void);
void sentinel_queue(struct work_struct *work);
void sentinel_queue_later(struct delayed_work *work, unsigned long delay);

/* process.c */
struct mm_struct *sentinel_process_mm(const struct sentinel_attach *attach, pid_t *tgid);

/* session.c */
struct sentinel_session *sentinel_session_attach(const struct sentinel_attach *attach);
void sentinel_session_end(struct sentinel_session *s);
bool sentinel_session_ending(struct sentinel_session *s);
int sentinel_session_lock(struct sentinel_session *s);
void sentinel_session_put(struct sentinel_session *s);

/* target.c */
struct sentinel_session *sentinel_session_find(struct mm_struct *mm);
unsigned int sentinel_session_count(void);
int sentinel_session_publish(struct sentinel_session *s);
void sentinel_session_withdraw(struct sentinel_session *s);
int sentinel_session_enter(struct sentinel_session *s);
void sentinel_session_leave(struct sentinel_session *s);

/* area.c */
int sentinel_area_add(struct sentinel_session *s, unsigned long start, unsigned long end);
struct sentinel_area *sentinel_area_find(struct sentinel_session *s, unsigned long address);
struct sentinel_areas *sentinel_area_table(struct sentinel_session *s);
void sentinel_area_drop(struct sentinel_session *s, struct sentinel_area *area);
void sentinel_area_drop_all(struct sentinel_session *s);
int sentinel_area_activate(struct sentinel_session *s, struct sentinel_area *area,
			   unsigned long start, unsigned long end, bool active);
struct sentinel_chunk *sentinel_chunk_get(struct sentinel_session *s, struct sentinel_area *area,
					  unsigned long index, gfp_t gfp);

/* pgtable.c */
bool sentinel_vma_fit(struct vm_area_struct *vma);
pmd_t *sentinel_pmd(struct mm_struct *mm, unsigned long address, unsigned long *next);
pte_t *sentinel_pte_lock(struct mm_struct *mm, pmd_t *pmd, unsigned long address, spinlock_t **ptl);
pte_t *sentinel_chunk_lock(struct sentinel_session *s, struct sentinel_chunk *chunk,
			   spinlock_t **ptl);
struct page *sentinel_pte_page(pte_t pte);
bool sentinel_entry_arm(pteval_t *entry, bool huge);
pte_t sentinel_entry_restore(struct vm_area_struct *vma, pteval_t *entry, bool huge, bool accessed,
			     bool writable);
void sentinel_flush_tlb(struct mm_struct *mm);

/* huge.c */
pmd_t *sentinel_huge_lock(struct mm_struct *mm, unsigned long address, spinlock_t **ptl);
pmd_t *sentinel_chunk_huge_lock(struct sentinel_session *s, struct sentinel_chunk *chunk,
				spinlock_t **ptl);
bool sentinel_huge_arm(struct sentinel_session *s, struct sentinel_chunk *chunk, pmd_t *pmd);
u64 sentinel_huge_disarm(struct sentinel_session *s, struct sentinel_chunk *chunk);
bool sentinel_huge_fault(struct sentinel_session *s, struct sentinel_chunk *chunk,
			 struct vm_area_struct *vma, pmd_t *pmd, unsigned int flags);
bool sentinel_huge_settle(struct sentinel_session *s, struct sentinel_chunk *chunk, pmd_t *pmd,
			  bool *armed);
bool sentinel_huge_clear_armed(struct sentinel_session *s, struct sentinel_chunk *chunk);

/* walk.c */
bool sentinel_arm_page(struct sentinel_session *s, struct sentinel_chunk *chunk, unsigned int nr,
		       pte_t *ptep);
int sentinel_arm(struct sentinel_session *s, struct sentinel_area *area,
		 struct sentinel_range *range);
int sentinel_disarm(struct sentinel_session *s, struct sentinel_area *area,
		    struct sentinel_range *range);
void sentinel_disarm_all(struct sentinel_session *s);
void sentinel_count_resident(struct sentinel_session *s);

/*
 * Calls visit for each page table and each huge page that maps a part of
 * [start, end), but only in VMAs for which sentinel_vma_fit() is true; mmap_lock is
 * held. count is passed to visit. If visit returns an error, stops and returns the error.
 */
typedef int (*sentinel_visit_t)(struct sentinel_session *s, struct sentinel_area *area, pmd_t *pmd,
				unsigned long start, unsigned long end, u64 *count);
int sentinel_visit_tables(struct sentinel_session *s, struct sentinel_area *area,
			  unsigned long start, unsigned long end, sentinel_visit_t visit,
			  u64 *count);

void sentinel_find_unarmed(struct sentinel_session *s, struct sentinel_area *area);

/* age.c */
int sentinel_age(struct sentinel_session *s, struct sentinel_area *area,
		 struct sentinel_range *range);

/* epoch.c */
void sentinel_epoch_settle(struct sentinel_session *s, struct sentinel_area *area);
struct file *sentinel_epoch_file(struct sentinel_session *s);
long sentinel_epoch_ioctl(struct sentinel_session *s, void __user *arg, bool target_only);

/* log.c */
int sentinel_log_create(struct sentinel_session *s, u64 records);
int sentinel_log_mmap(struct sentinel_session *s, struct vm_area_struct *vma);
void sentinel_log_put(struct sentinel_session *s);
void sentinel_log_append(struct sentinel_session *s, struct sentinel_access record);
void sentinel_note_lost(struct sentinel_session *s);

/* note.c */
u32 sentinel_note_hit(struct sentinel_session *s, struct sentinel_chunk *chunk, unsigned int nr,
		      bool was_armed, u8 node, u8 *flags);
void sentinel_note_late(struct sentinel_session *s, struct sentinel_chunk *chunk, unsigned int nr,
			bool born, bool write);
void sentinel_note_resolved(struct sentinel_session *s, struct sentinel_chunk *chunk);
void sentinel_record_late(struct sentinel_session *s, unsigned long address, u32 epoch,
			  struct page *page, u8 flags);
void sentinel_note_huge(struct sentinel_session *s, struct sentinel_chunk *chunk, bool was_armed,
			u8 node, bool write);
void sentinel_note_passed_on(struct sentinel_session *s);
void sentinel_note_unwatched(struct sentinel_session *s, struct sentinel_chunk *chunk,
			     unsigned int first, unsigned int last);
void sentinel_note_gap(struct sentinel_session *s, struct sentinel_chunk *chunk, unsigned int nr);
void sentinel_chunk_queue(struct sentinel_session *s, struct sentinel_chunk *chunk);
void sentinel_change_begin(struct sentinel_session *s, unsigned long start, unsigned long end);
void sentinel_change_end(struct sentinel_session *s, unsigned long start, unsigned long end);
unsigned int sentinel_changes(struct sentinel_session *s, unsigned long start, unsigned long end);
void sentinel_note_change(struct sentinel_session *s, unsigned long start, unsigned long end,
			  enum sentinel_change_kind kind);

/* notify.c */
int sentinel_notify_register(struct sentinel_session *s);
void sentinel_notify_unregister(struct sentinel_session *s);
void sentinel_notify_hook_init(void);
void sentinel_notify_hook_exit(void);
void sentinel_notify_hook_attach(void);
void sentinel_notify_hook_detach(void);
bool sentinel_notify_works(void);

/* rearm.c */
void sentinel_rearm_start(struct sentinel_session *s, u32 period_us);
void sentinel_rearm_stop(struct sentinel_session *s);

/* hook.c */
int sentinel_hook_init(void);
void sentinel_hook_exit(void);
int sentinel_hook_get(void);
void sentinel_hook_put(void);
u32 sentinel_hook_features(void);

static inline unsigned long sentinel_chunk_index(const struct sentinel_area *area,
						 unsigned long address)
{
	return (address >> SENTINEL_CHUNK_SHIFT) - (area->start >> SENTINEL_CHUNK_SHIFT);
}

/* Returns the chunk, or NULL if it is not allocated yet. */
static inline struct sentinel_chunk *sentinel_chunk_at(const struct sentinel_area *area,
						       unsigned long index)
{
	/* pairs with sentinel_chunk_get(), which initializes the chunk before it is stored */
	return smp_load_acquire(&area->chunk[index]);
}

static inline unsigned int sentinel_page_nr(unsigned long address)
{
	return (address >> PAGE_SHIFT) % SENTINEL_CHUNK_PAGES;
}

static inline u8 sentinel_node(const struct page *page)
{
	return min(page_to_nid(page), SENTINEL_NODE_UNKNOWN);
}

/* Returns the flags of page nr's late record; the bitmaps are those of the record's epoch. */
static inline u8 sentinel_late_flags(const unsigned long *born, const unsigned long *written,
				     unsigned int nr)
{
	return (test_bit(nr, born) ? SENTINEL_ACCESS_BIRTH : 0) |
	       (test_bit(nr, written) ? SENTINEL_ACCESS_WRITE : 0);
}

/* Clears the armed bit; returns true if it was set. */
static inline bool sentinel_clear_armed(struct sentinel_session *s, struct sentinel_chunk *chunk,
					unsigned int nr)
{
	if (!test_and_clear_bit(nr, chunk->armed))
		return false;
	atomic_long_dec(&s->armed_pages);
	return true;
}

#endif
