/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared memory between the shim (inside a training process) and the daemon.
 * protocol.py defines the same constants, and has numpy dtypes for the same
 * structs; a test compares both files.
 *
 * Three segments, all memfds sent with SCM_RIGHTS:
 *   control:   created by the shim, sent with its hello. Holds the control words, then the ring.
 *   layout:    created and sealed by the daemon, sent with a "layout" message.
 *              The shim copies and checks it between two steps and never reads
 *              the memfd again.
 *   residency: emulated and paged tiers only. Created by the shim for a layout with
 *              SENTINEL_LAYOUT_EMULATED, sent with the shim's answer to that layout
 *              and with every later hello. The segment's maps give the node of each page, as
 *              the kernel's page tables do on real nodes. If the shim's pager runs,
 *              the segment also has the queues of the daemon's moves.
 *
 * Each word has one writer; only the residency maps have two writers. Words that
 * announce other data, such as heads, tails and positions, are stored with release
 * order and loaded with acquire order; some counters use relaxed order. The daemon
 * must validate everything that it reads from these segments.
 */
#ifndef SENTINELD_SHIM_PROTOCOL_H
#define SENTINELD_SHIM_PROTOCOL_H

#include <stdint.h>

#define SENTINEL_SHIM_VERSION 10
#define SENTINEL_CONTROL_MAGIC 0x314c544e45534853ull /* "SHSENTL1" */
#define SENTINEL_LAYOUT_MAGIC 0x3159414c53484e53ull /* "SNHSLAY1" */
#define SENTINEL_RESIDENCY_MAGIC 0x3153455253484e53ull /* "SNHSRES1" */

/* Smaller allocations are served by libc10 and never recorded. All others are page-aligned, unless
   neither heap nor arena has room for them. */
#define SENTINEL_TENSOR_BYTES_MIN 4096

/* control.mode, written by the shim */
enum sentinel_mode {
	SENTINEL_MODE_DORMANT = 0, /* allocations go to the heap; nothing is recorded */
	SENTINEL_MODE_RECORD = 1, /* allocations go to the heap; the ring is written */
	/* a layout is live: allocations get their planned offsets; the layout's cuts are boundaries too */
	SENTINEL_MODE_REPLAY = 2,
	/* the step differs from the layout: the heap serves the rest of the step; the layout stays live */
	SENTINEL_MODE_DIVERGED = 3,
};

/* control.flags, written by the daemon; RECORD, EPOCHS and NO_STALLS take effect when a step begins */
#define SENTINEL_FLAG_RECORD (1u << 0) /* write ring records */
#define SENTINEL_FLAG_EPOCHS (1u << 1) /* advance the kernel module's epoch at each boundary */
/* log resident memory in the module's log and, on emulated and paged tiers, in SERVED records */
#define SENTINEL_FLAG_RESIDENCY (1u << 2)
/* the daemon has sent a message; the shim ignores this flag, because it reads the socket after
   every step anyway */
#define SENTINEL_FLAG_MESSAGE (1u << 3)
/* paged tiers: exclude stalls from the times of ring records. If any thread waited for a page
   between two records, all time that the step's owner (shim.h) slept between them is a stall. */
#define SENTINEL_FLAG_NO_STALLS (1u << 4)

/*
 * 512 bytes; the ring begins in a later page (ring_offset >= 4096). The offsets of the fields are part
 * of the protocol.
 */
struct sentinel_control {
	/* 0x000: written once by the shim, before its hello message */
	uint64_t magic;
	uint32_t version;
	uint32_t pid;
	uint64_t ring_offset; /* bytes from the segment's start */
	uint64_t ring_records; /* a power of two */
	uint64_t heap_base; /* address of the shim's heap, which holds unplanned tensors >= 4 KiB */
	uint64_t heap_bytes; /* size of the heap's reserved address space */
	uint64_t reserved0[9];
	/* written by the shim at any time: number of diverged steps since the last step that
	   followed the layout, or since the layout became live */
	uint64_t diverged_in_row;

	/* 0x080: written by the shim */
	uint64_t ring_head; /* number of records written since the shim's start */
	uint64_t ring_lost; /* number of records dropped because the ring was full */
	uint64_t step; /* number of steps begun */
	uint64_t position; /* step << 32 | index of the last passed boundary within the step */
	/* number of allocations >= 4 KiB since the step began; missing optional allocations
	   (SENTINEL_SLOT_OPTIONAL) count, too */
	uint64_t cursor;
	uint32_t layer; /* id of the current layer */
	uint32_t mode; /* enum sentinel_mode */
	uint64_t heap_used; /* high-water mark in bytes from heap_base */
	uint64_t heap_live; /* bytes of live blocks, in whole pages */
	uint64_t arena_base; /* address of the planned arena; 0: none */
	uint64_t arena_bytes;
	uint64_t layout_id; /* id of the live layout; 0: none */
	uint64_t small_bytes; /* live bytes of tensors smaller than 4 KiB */
	uint64_t fallback_bytes; /* live bytes of tensors >= 4 KiB that fit neither heap nor arena */
	uint64_t diverged_steps; /* number of diverged steps since the shim's start */
	/* number of barriers, since the shim's start, that timed out or found the heartbeat stale
	   before the moves were done */
	uint64_t barrier_timeouts;
	uint64_t barrier_wait_ns; /* time spent in barriers since the shim's start */

	/* 0x100: written by the daemon */
	uint32_t flags; /* SENTINEL_FLAG_* */
	uint32_t reserved1;
	uint64_t heartbeat; /* CLOCK_MONOTONIC ns, refreshed every 250 ms */
	uint64_t ring_tail; /* number of records read since the shim's start */
	/* A position. All demotions that are due up to this position have ended. At a barrier for a
	   promotion, the shim waits until moves_done reaches the last boundary before the
	   promotion's deadline. The daemon lets moves_done reach that boundary only when the
	   promotion has ended or fast memory has no room for promotions. */
	uint64_t moves_done;
	uint64_t barrier_timeout_ns; /* 0: do not wait at barriers */
	/* A position; 0: none. The shim writes to the eventfd once, when its position reaches this
	   one or a later one. */
	uint64_t wake_position;
	uint64_t reserved2[26];
};

/* No barrier waits if the heartbeat is older than this. */
#define SENTINEL_HEARTBEAT_STALE_NS 2000000000ull

/* record.event. The comments give the meaning of fields of struct sentinel_record; `address` and
   `bytes` without a value are the tensor's. */
enum sentinel_event {
	SENTINEL_EVENT_NONE = 0,
	/* address, bytes, detail = enum sentinel_alloc, value = cursor of this allocation, or ~0 if
	   detail is not SENTINEL_ALLOC_STEP; address 0: neither heap nor arena had room, so libc10
	   serves the allocation */
	SENTINEL_EVENT_ALLOC = 1,
	/* address, bytes, value = cursor at birth, or ~0 if the tensor was born before this step or
	   not allocated by the step's owner */
	SENTINEL_EVENT_FREE = 2,
	/* address = epoch that begins (0: none), bytes = cursor, value = boundary index, layer = id
	   of the boundary's layer, detail = enum sentinel_boundary */
	SENTINEL_EVENT_BOUNDARY = 3,
	/* a step begins; address = epoch, bytes = step number */
	SENTINEL_EVENT_STEP = 4,
	/* emulated and paged tiers with SENTINEL_FLAG_RESIDENCY, after a boundary: address = bytes
	   resident in fast memory, bytes = bytes resident in slow memory, value = number of page
	   accesses of the stretch that begins (but see SENTINEL_ACCESS_AFTER) */
	SENTINEL_EVENT_SERVED = 5,
	/* follows SERVED: value = number of page accesses served by fast memory, address = delay in
	   ns that all other page accesses add to the debt, bytes = sentinel_residency.paid_ns */
	SENTINEL_EVENT_SERVED_FAST = 6,
	/* the script has placed a tensor, or has cancelled its placement: address, bytes and value
	   as in the tensor's ALLOC record, detail = enum sentinel_placement. If a tensor is placed
	   at its birth, or was placed before the step began, this record directly follows the
	   tensor's ALLOC record. */
	SENTINEL_EVENT_PLACED = 7,
};

/* The tier that the script has asked for. */
enum sentinel_placement {
	SENTINEL_PLACEMENT_AUTO = 0, /* no request: the plan decides */
	SENTINEL_PLACEMENT_FAST = 1,
	SENTINEL_PLACEMENT_SLOW = 2,
};

enum sentinel_alloc {
	SENTINEL_ALLOC_STEP = 0, /* an allocation by the thread that began the step (its owner) */
	SENTINEL_ALLOC_LIVE = 1, /* not a birth: a tensor that was live when the step began; value ~0 */
	SENTINEL_ALLOC_OTHER = 2, /* an allocation by a thread that is not the step's owner; value ~0 */
};

enum sentinel_boundary {
	SENTINEL_BOUNDARY_STEP = 0, /* the step begins: boundary 0 */
	SENTINEL_BOUNDARY_FORWARD = 1, /* a leaf module's forward begins */
	SENTINEL_BOUNDARY_BACKWARD = 2, /* a leaf module's backward begins */
	SENTINEL_BOUNDARY_OPTIMIZER = 3, /* optimizer.step() begins */
	SENTINEL_BOUNDARY_CUT = 4, /* the cursor reached a cut of the layout */
	/* the first allocation after a leaf module's forward, before any other boundary; layer 0 */
	SENTINEL_BOUNDARY_OUTSIDE = 5,
};

struct sentinel_record { /* 32 bytes */
	uint64_t time_ns; /* CLOCK_MONOTONIC */
	uint64_t address;
	uint64_t bytes;
	uint32_t value;
	uint16_t layer;
	uint8_t event; /* written last, with release order */
	uint8_t detail;
};

/* slot.flags */
/* offset is valid; without this flag, the heap serves the allocation */
#define SENTINEL_SLOT_PLANNED (1u << 0)
#define SENTINEL_SLOT_DROP (1u << 1) /* drop the pages (MADV_DONTNEED) when the tensor dies */
#define SENTINEL_SLOT_POPULATE (1u << 2) /* at the tensor's birth, fault in all its pages in one call */
#define SENTINEL_SLOT_DROP_PARTS (1u << 3) /* when the tensor dies, drop only the slot's parts */
/* in some steps, this allocation is smaller than SENTINEL_TENSOR_BYTES_MIN, so the shim does not
   see it */
#define SENTINEL_SLOT_OPTIONAL (1u << 4)

struct sentinel_slot { /* 24 bytes; index = cursor of the allocation within the step */
	uint64_t bytes; /* largest size of the allocation; a larger allocation is a divergence */
	uint64_t offset; /* the slot's offset in the arena, page-aligned */
	uint32_t flags;
	/* how much smaller than `bytes` the allocation may be, in units of SENTINEL_TENSOR_BYTES_MIN;
	   an even smaller allocation is a divergence */
	uint32_t slack;
};

struct sentinel_part { /* 24 bytes: pages that a slot with SENTINEL_SLOT_DROP_PARTS drops */
	uint64_t offset; /* the part's offset in the arena, page-aligned, within the slot's pages */
	uint64_t bytes; /* whole pages */
	uint32_t slot;
	uint32_t reserved;
};

struct sentinel_region { /* 24 bytes: births in [offset, offset + bytes) prefer this node */
	uint64_t offset;
	uint64_t bytes;
	int32_t node; /* -1: no policy, the kernel's default */
	uint32_t reserved;
};

/* layout.flags */
/* emulated or paged tiers: a residency map is used, and no memory is bound with mbind */
#define SENTINEL_LAYOUT_EMULATED (1u << 0)

/* access.flags */
#define SENTINEL_ACCESS_HEAP (1u << 0) /* offset counts from the heap's base, not the arena's */
/* the pages are born in this stretch: `node` gives their node, and the map is not read */
#define SENTINEL_ACCESS_AT_BIRTH (1u << 1)
/* count the access only when the next stretch begins: the tensor is born in this stretch, and its
   size is unknown before its birth. So the map is read after the wait at the boundary that ends
   this stretch. */
#define SENTINEL_ACCESS_AFTER (1u << 2)
/* not an access: computation hides the first `slow_ps` ps of the stretch's delay */
#define SENTINEL_ACCESS_HIDES (1u << 3)

struct sentinel_access { /* 40 bytes: emulated and paged tiers only; sorted by stretch */
	/* page-aligned offset of the tensor, or of a part of it: the row of a tensor is split where a
	   region ends, and where pages that are born anew meet others */
	uint64_t offset;
	uint64_t slow_ps; /* delay for each slow page in this stretch, in ps; 0 on paged tiers */
	uint32_t pages; /* number of pages of the tensor, or of its part, from `offset` on */
	uint32_t touched; /* number of pages that the stretch touches, for metering */
	uint32_t stretch;
	uint16_t flags;
	int16_t node; /* node on which absent pages are born */
	/* 1 + slot: count only pages of the tensor that was born last in this slot; 0: count all
	   pages */
	uint32_t slot;
	uint32_t reserved;
};

/*
 * Header of the residency segment. The arena's map and the heap's map follow it, both 8-byte
 * aligned, with one byte for each page: 0 if absent, otherwise 1 + node. On emulated tiers, the
 * process writes births and drops; the daemon and the process write moves (see struct
 * sentinel_flight). The entry of a page in flight gives its source node. If node 0 is full, pages
 * are born on node 1, just as the kernel falls back to another node.
 */
struct sentinel_residency { /* 128 bytes */
	uint64_t magic;
	uint32_t version;
	uint32_t page_bytes;
	uint64_t layout_id;
	uint64_t arena_offset;
	uint64_t arena_pages;
	uint64_t heap_offset;
	uint64_t heap_pages;
	/* total delay owed for slow pages since the process first had emulated tiers */
	uint64_t owed_ns;
	/* total time waited to pay owed_ns; can exceed owed_ns, because a wait can overrun */
	uint64_t paid_ns;
	/* written by the daemon: number of pages whose entry it has changed to node 0, minus number of
	   pages whose entry it has changed from node 0 to another node */
	int64_t moved_fast;
	/* written by the daemon: number of pages in the batch that is moving to node 0. Room on node
	   0 is reserved for all of them. A page that the training process has already recorded in
	   the map as arrived still counts here until the batch ends. */
	uint64_t in_flight_fast;
	int64_t fast_own; /* number of pages used on node 0, minus moved_fast */
	uint64_t fast_limit; /* capacity of node 0 in pages; 0: unlimited */
	/* offset of struct sentinel_paging, 8-byte aligned; 0: no such struct, because the pager does
	   not run */
	uint64_t paging_offset;
	/* offset of struct sentinel_flight, 8-byte aligned; 0: no such struct, because the pager runs */
	uint64_t flight_offset;
	uint64_t reserved;
};

struct sentinel_page_range { /* 16 bytes */
	uint64_t page; /* first page, counted from the base of the space */
	uint32_t pages;
	uint32_t space; /* 0: arena, 1: heap */
};

#define SENTINEL_FLIGHT_RANGES 1024u

/*
 * Emulated tiers, written by the daemon: the last batch of pages that it has begun to move.
 * The pages move one after the other, in the order of the ranges. Page i, counted from 0, arrives
 * at begin_ns + (i + 1) * page_ps / 1000 if i is less than `limit`. Absent pages do not arrive.
 * Before the process reads the map, it records in the map which pages have arrived. When the batch
 * ends, the daemon records those arrived pages that the process has not recorded.
 */
struct sentinel_flight {
	/* incremented before and after the other words are changed, so odd during the change; only
	   `limit` also changes at other times */
	uint64_t sequence;
	uint64_t limit; /* number of pages that arrive; lowered when the batch is interrupted */
	uint64_t begin_ns; /* CLOCK_MONOTONIC */
	uint64_t page_ps;
	uint32_t count; /* number of ranges */
	uint32_t node; /* target */
	struct sentinel_page_range ranges[SENTINEL_FLIGHT_RANGES];
};

/*
 * Paged tiers: node 0 is memory, node 1 is the file. The pager (pager/pager.h) writes the maps. It
 * carries out the layout's moves without the daemon. For other moves, the daemon appends ranges to the
 * two queues and then writes to the eventfd that it sent to the shim (paging_settings.wake).
 */
#define SENTINEL_QUEUE_RANGES 1024u /* a power of two */

struct sentinel_page_queue {
	/* written by the daemon: number of ranges appended since the segment was created */
	uint64_t head;
	/* written by the shim: number of ranges that are done; in such a range, the move of each page
	   has begun, or the page needs no move */
	uint64_t tail;
	struct sentinel_page_range ranges[SENTINEL_QUEUE_RANGES];
};

struct sentinel_paging {
	/* written by the shim, counted since the pager's start; see struct pager_counts */
	uint64_t bytes_read;
	uint64_t bytes_written;
	uint64_t faults;
	uint64_t births_by_fault;
	uint64_t clean_pages;
	uint64_t waits;
	uint64_t overruns;
	uint64_t frames; /* page frames held now, free ones included */
	uint64_t budget_pages;
	uint64_t file_bytes; /* size of the file */
	int64_t write_error;
	/* numbers of pages that the layout's moves have begun to evict and to fetch since the segment
	   was created */
	uint64_t evicted_pages;
	uint64_t fetched_pages;
	/* number of the layout's fetches that moved pages after sentinel_move.deadline, or were
	   incomplete at sentinel_move.end */
	uint64_t late_moves;
	/* counted since the pager's start; see struct pager_counts */
	uint64_t fault_reads;
	uint64_t fault_read_ns;
	struct sentinel_page_queue evict;
	struct sentinel_page_queue fetch;
};

/* size of the largest transparent huge page, and alignment of the arena */
#define SENTINEL_HUGE_BYTES (2ull << 20)

struct sentinel_huge { /* 16 bytes: a range with MADV_HUGEPAGE; other ranges have MADV_NOHUGEPAGE */
	uint64_t offset; /* the range's offset in the arena, page-aligned */
	uint64_t bytes; /* whole pages */
};

/* wait.flags */
#define SENTINEL_WAIT_ENABLED (1u << 0) /* wait; without this flag, `boundary` is ignored */
#define SENTINEL_WAIT_STEP_BEFORE (1u << 1) /* `boundary` belongs to the previous step */

struct sentinel_wait { /* 8 bytes; index = boundary within the step */
	uint32_t boundary; /* wait until control.moves_done has reached this boundary */
	uint32_t flags;
};

/* move.flags */
/* from memory to the file; without this flag, from the file to memory */
#define SENTINEL_MOVE_EVICT (1u << 0)
#define SENTINEL_MOVE_HEAP (1u << 1) /* `page` counts from the heap's base, not the arena's */

struct sentinel_move { /* 32 bytes: paged tiers only; sorted by boundary */
	uint64_t page; /* first page, counted from the base of the arena or the heap */
	uint32_t pages;
	uint32_t boundary; /* the move begins when the process passes this boundary of the step */
	/* deadline, end: boundaries, given by their distance from `boundary`: 1 to
	   boundary_count */
	uint32_t deadline; /* a fetch that moves pages after this boundary is late */
	uint32_t end; /* at this boundary, the move becomes obsolete */
	uint32_t flags;
	uint32_t reserved;
};

/*
 * Header of the layout. These tables follow it, in this order and each 8-byte aligned: slots, cuts
 * (one uint32_t cursor each, ascending), regions, waits, parts (sorted by slot, then by offset),
 * accesses, huge ranges (ascending), moves.
 */
struct sentinel_layout {
	uint64_t magic;
	uint32_t version;
	uint32_t slot_count; /* number of allocations >= 4 KiB in a step, optional allocations included */
	uint64_t layout_id;
	uint64_t arena_bytes;
	uint32_t cut_count;
	uint32_t region_count;
	uint32_t boundary_count; /* number of boundaries in a step, cuts and boundary 0 included */
	int32_t heap_node; /* births in the heap prefer this node; -1: the default NUMA memory policy */
	uint64_t slots_offset;
	uint64_t cuts_offset;
	uint64_t regions_offset;
	uint64_t waits_offset;
	uint64_t total_bytes;
	uint32_t flags;
	uint32_t access_count;
	uint64_t accesses_offset; /* offset of the accesses; ignored if access_count is 0 */
	/* emulated tiers: capacity of node 0 for arena and heap (0: unlimited); paged tiers: the
	   pager's budget (0: no change) */
	uint64_t fast_pages;
	uint64_t parts_offset;
	uint32_t part_count;
	uint32_t huge_count;
	uint64_t huge_offset; /* offset of the huge ranges; ignored if huge_count is 0 */
	uint64_t moves_offset; /* offset of the moves; ignored if move_count is 0 */
	uint32_t move_count;
	uint32_t reserved;
};

#endif
