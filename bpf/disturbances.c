/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Disturbances of watched processes' anonymous pages: moves, reclaim and collapses
 * that the daemon did not request.
 *
 * The kernel's tracepoints for migration and reclaim do not name the pages' owner. But
 * for each VMA that may map a page, the kernel calls remove_migration_pte() at the end of
 * a move, even a failed one, and try_to_unmap_one() when reclaim unmaps the page. The owner
 * is the process to whose address space the VMA belongs. After a fork, the VMAs of parent
 * and child may map the same pages. The kernel then calls the functions for both VMAs, even
 * if only one of them still maps the page. The eBPF programs cannot tell whether the VMA of
 * a call still maps the page, so they count the page for both processes. (The tracepoint
 * migrate:remove_migration_pte occurs only if the VMA maps the page, but it covers only small
 * pages, and it names neither the page nor the VMA.) The current task is the one that
 * disturbs the pages; this file calls it the mover. The reason for a move comes from the
 * tracepoint mm_migrate_pages_start, which precedes the move.
 */

/* values of disturbance_key.deed in addition to those of the kernel's enum migrate_reason */
#define DEED_RECLAIM 64
#define DEED_COLLAPSE 65
#define DEED_UNKNOWN 66

#define NO_NODE 255
#define HUGE_PAGES 512 /* number of 4 KiB pages in a huge page of 2 MiB */

struct disturbance_key {
	u32 owner; /* process that maps the pages */
	u8 deed; /* migration reason or DEED_*: how the pages were disturbed */
	u8 from; /* node of the pages before the disturbance, or NO_NODE */
	u8 to; /* node of the pages after the disturbance, or NO_NODE */
	u8 own; /* 1: the current task belongs to the owner */
	/* the mover's name; with the mover's pid in the key, the map would need too many rows */
	char comm[16];
};

struct disturbance {
	u64 pages; /* number of pages moved, reclaimed or collapsed */
	u64 kept; /* number of pages that failed to move; a page that fails twice counts twice */
	u64 last_ns; /* CLOCK_MONOTONIC */
	u32 mover; /* pid of the latest mover with the name `comm` */
	u32 reserved;
};

BPF_HASH(disturbances, struct disturbance_key, struct disturbance, 1024);

/*
 * The reasons for the moves that a thread is executing. Moves can be nested: a move may
 * allocate memory, the allocation may cause reclaim, and reclaim may move pages, too.
 */
struct moving {
	u32 depth;
	u32 reasons[4];
};

BPF_HASH(moving, u32, struct moving, 1024);

static inline u64 read_word(u64 address)
{
	u64 word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), (void *)address);
	return word;
}

static inline u32 owner_of(u64 mm)
{
	u64 task = mm ? read_word(mm + MM_OWNER) : 0;
	u32 pid = 0;

	if (task)
		bpf_probe_read_kernel(&pid, sizeof(pid), (void *)(task + TASK_TGID));
	return pid;
}

static inline u32 node_of(u64 folio)
{
#ifdef CONFIG_NODES_SHIFT
	return read_word(folio + FOLIO_FLAGS) >> (64 - CONFIG_NODES_SHIFT) & 255;
#else
	return 0;
#endif
}

static inline int is_anonymous(u64 folio)
{
	return read_word(folio + FOLIO_MAPPING) & 1; /* PAGE_MAPPING_ANON */
}

static inline u64 pages_of(u64 folio)
{
	u32 pages = 1;

	if (read_word(folio + FOLIO_FLAGS) & (1ull << PAGE_HEAD_BIT))
		bpf_probe_read_kernel(&pages, sizeof(pages), (void *)(folio + FOLIO_PAGES));
	return pages;
}

static inline void disturb(u32 owner, u32 deed, u32 from, u32 to, u64 pages, u64 kept)
{
	u32 mover = bpf_get_current_pid_tgid() >> 32;
	struct disturbance_key key = {};
	struct disturbance empty = {};
	struct disturbance *row;

	key.owner = owner;
	key.deed = deed;
	key.from = from;
	key.to = to;
	key.own = mover == owner;
	bpf_get_current_comm(&key.comm, sizeof(key.comm));
	row = disturbances.lookup(&key);
	if (!row) {
		disturbances.insert(&key, &empty);
		row = disturbances.lookup(&key);
	}
	if (!row) {
		count_drops(DROP_DISTURBANCE, pages + kept);
		return;
	}
	__sync_fetch_and_add(&row->pages, pages);
	__sync_fetch_and_add(&row->kept, kept);
	row->last_ns = bpf_ktime_get_ns();
	row->mover = mover;
}

/* migrate:mm_migrate_pages_start: TP_PROTO(enum migrate_mode mode, int reason) */
int on_migrate_pages_start(struct bpf_raw_tracepoint_args *ctx)
{
	u32 thread = bpf_get_current_pid_tgid();
	struct moving first = {};
	struct moving *moves = moving.lookup(&thread);

	if (moves) {
		if (moves->depth < 4)
			moves->reasons[moves->depth & 3] = ctx->args[1];
		moves->depth++;
		return 0;
	}
	first.depth = 1;
	first.reasons[0] = ctx->args[1];
	moving.insert(&thread, &first);
	return 0;
}

/* called at migrate:mm_migrate_pages (migrations.c) */
static inline void end_move(void)
{
	u32 thread = bpf_get_current_pid_tgid();
	struct moving *moves = moving.lookup(&thread);

	if (!moves)
		return;
	if (moves->depth > 1)
		moves->depth--;
	else
		moving.delete(&thread);
}

/*
 * remove_migration_pte(folio, vma, address, old): a page is mapped again. folio
 * is the new page, or the old one if the move failed.
 */
int on_page_back(struct bpf_raw_tracepoint_args *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	u64 folio = ctx->args[0], vma = ctx->args[1], old = ctx->args[3];
	u32 thread = id, owner, reason, last;
	struct moving *moves;
	u64 pages;

	/* outside migrate_pages(), this call belongs to the split of a huge page: no page moves */
	moves = moving.lookup(&thread);
	if (!moves)
		return 0;
	last = moves->depth - 1;
	reason = last < 4 ? moves->reasons[last & 3] : DEED_UNKNOWN;
	/* the daemon itself counts the pages of its own move_pages() calls */
	if (id >> 32 == DAEMON_PID && reason == MIGRATE_SYSCALL)
		return 0;
	owner = owner_of(read_word(vma + VMA_MM));
	if (!watched.lookup(&owner) || !is_anonymous(folio))
		return 0;
	/* newer kernels pass the old folio in a structure */
	if (OLD_FOLIO_IN_STRUCT)
		old = read_word(old);
	pages = pages_of(folio);
	disturb(owner, reason, node_of(old), node_of(folio), old == folio ? 0 : pages,
		old == folio ? pages : 0);
	return 0;
}

/* bool try_to_unmap_one(folio, vma, address, arg): false if the VMA still maps the page */
int on_page_gone(struct bpf_raw_tracepoint_args *ctx)
{
	u64 folio = ctx->args[0], vma = ctx->args[1];
	u32 owner;

	if (!(ctx->args[4] & 1))
		return 0;
	owner = owner_of(read_word(vma + VMA_MM));
	if (!watched.lookup(&owner) || !is_anonymous(folio))
		return 0;
	disturb(owner, DEED_RECLAIM, node_of(folio), NO_NODE, pages_of(folio), 0);
	return 0;
}

/* huge_memory:mm_collapse_huge_page: TP_PROTO(struct mm_struct *, int isolated, int status) */
int on_collapse(struct bpf_raw_tracepoint_args *ctx)
{
	u32 owner;

	if ((u32)ctx->args[2] != SCAN_SUCCEED)
		return 0;
	owner = owner_of(ctx->args[0]);
	if (watched.lookup(&owner))
		disturb(owner, DEED_COLLAPSE, NO_NODE, NO_NODE, HUGE_PAGES, 0);
	return 0;
}
