/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract between the shim (inside a training process) and the daemon:
 * layouts of the shared memory. sentineld/model/protocol.py derives its numpy
 * dtypes from the same numbers; a test compares the two.
 *
 * Three segments, all memfds handed over with SCM_RIGHTS:
 *   control:   made by the shim, sent with its hello. Words, then the ring.
 *   layout:    made by the daemon, sealed, sent with a "layout" message. The shim
 *              copies and checks it at a step's begin; it is never read again.
 *   residency: for emulated tiers only; made by the shim with a layout that says
 *              so, sent with its answer and with every later hello. The page
 *              table of machines that have but one tier.
 *
 * Words of one writer each; a word is stored with release and loaded with
 * acquire order. The daemon trusts nothing it reads here.
 */
#ifndef SENTINELD_SHIM_PROTOCOL_H
#define SENTINELD_SHIM_PROTOCOL_H

#include <stdint.h>

#define SENTINEL_SHIM_VERSION 3
#define SENTINEL_CONTROL_MAGIC 0x314c544e45534853ull /* "SHSENTL1" */
#define SENTINEL_LAYOUT_MAGIC 0x3159414c53484e53ull /* "SNHSLAY1" */
#define SENTINEL_RESIDENCY_MAGIC 0x3153455253484e53ull /* "SNHSRES1" */

/* Smaller allocations stay in malloc; larger ones are page-aligned and recorded. */
#define SENTINEL_TENSOR_BYTES_MIN 4096

/* control.mode, written by the shim */
enum sentinel_mode {
	SENTINEL_MODE_DORMANT = 0, /* allocations go to the heap; nothing is recorded */
	SENTINEL_MODE_RECORD = 1, /* the ring is written, boundaries are the layers' */
	SENTINEL_MODE_REPLAY = 2, /* a layout is live: planned offsets, its cuts are boundaries too */
	SENTINEL_MODE_DIVERGED = 3, /* as RECORD for the rest of this step; layout stays, slots unused */
};

/* control.flags, written by the daemon, looked at when a boundary passes */
#define SENTINEL_FLAG_RECORD (1u << 0) /* write ring records; takes effect at a step's begin */
#define SENTINEL_FLAG_EPOCHS (1u << 1) /* advance the module's epoch at each boundary; at a step's begin */
#define SENTINEL_FLAG_RESIDENCY (1u << 2) /* with EPOCHS: have the module log residency */
#define SENTINEL_FLAG_SLEEPING (1u << 3) /* the daemon sleeps: write the eventfd at boundaries */
#define SENTINEL_FLAG_MESSAGE (1u << 4) /* a message waits on the socket: read it at step begin */

/* 512 bytes in a page of its own (ring_offset >= 4096); offsets are part of the contract */
struct sentinel_control {
	/* 0x000: written once by the shim, before hello */
	uint64_t magic;
	uint32_t version;
	uint32_t pid;
	uint64_t ring_offset; /* bytes from the segment's start */
	uint64_t ring_records; /* a power of two */
	uint64_t heap_base; /* address of the shim's heap: every unplanned tensor >= 4 KiB */
	uint64_t heap_bytes; /* reserved */
	uint64_t reserved0[9];
	uint64_t diverged_in_row; /* not once: steps that diverged since one last followed the layout */

	/* 0x080: written by the shim */
	uint64_t ring_head; /* records written since start */
	uint64_t ring_lost; /* records dropped, the ring was full */
	uint64_t step; /* steps begun */
	uint64_t position; /* step << 32 | boundary index within the step; the one word a waiter needs */
	uint64_t cursor; /* allocations >= 4 KiB since the step began */
	uint32_t layer; /* current layer id */
	uint32_t mode; /* enum sentinel_mode */
	uint64_t heap_used; /* high-water mark in bytes from heap_base */
	uint64_t heap_live; /* live bytes, page-rounded */
	uint64_t arena_base; /* address of the planned arena; 0: none */
	uint64_t arena_bytes;
	uint64_t layout_id; /* of the live layout; 0: none */
	uint64_t small_bytes; /* live tensor bytes below 4 KiB each */
	uint64_t fallback_bytes; /* live tensor bytes >= 4 KiB that neither heap nor arena could take */
	uint64_t diverged_steps;
	uint64_t barrier_timeouts;
	uint64_t barrier_wait_ns; /* time spent in barriers since start */

	/* 0x100: written by the daemon */
	uint32_t flags;
	uint32_t reserved1;
	uint64_t heartbeat; /* CLOCK_MONOTONIC ns, refreshed every 250 ms */
	uint64_t ring_tail;
	uint64_t moves_done; /* every move issued at positions <= this one is complete */
	uint64_t barrier_timeout_ns;
	uint64_t reserved2[27];
};

/* A barrier never waits when the heartbeat is older than this. */
#define SENTINEL_HEARTBEAT_STALE_NS 2000000000ull

enum sentinel_event {
	SENTINEL_EVENT_NONE = 0,
	SENTINEL_EVENT_ALLOC =
		1, /* address, bytes, value = cursor of this allocation or ~0, detail = enum sentinel_alloc */
	SENTINEL_EVENT_FREE = 2, /* address, bytes, value = cursor at birth, or ~0: born outside this step */
	SENTINEL_EVENT_BOUNDARY = 3, /* address = epoch that begins (0: none), bytes = cursor,
					value = boundary index, layer, detail = enum sentinel_boundary */
	SENTINEL_EVENT_STEP = 4, /* a step begins; address = epoch, bytes = step number */
	SENTINEL_EVENT_SERVED =
		5, /* emulated tiers, with SENTINEL_FLAG_RESIDENCY, after a boundary: address = fast pages
		      resident, bytes = slow ones, value = page accesses of the stretch that begins */
	SENTINEL_EVENT_SERVED_FAST = 6, /* after SERVED: value = those of them that find their page fast,
					   address = what the others cost in ns, bytes = paid_ns */
};

enum sentinel_alloc {
	SENTINEL_ALLOC_STEP = 0, /* in the step's sequence */
	SENTINEL_ALLOC_LIVE = 1, /* no birth: was live when the step began; value ~0 */
	SENTINEL_ALLOC_OTHER = 2, /* by another thread than the step's owner; value ~0 */
};

enum sentinel_boundary {
	SENTINEL_BOUNDARY_STEP = 0, /* the step's begin: boundary 0 */
	SENTINEL_BOUNDARY_FORWARD = 1, /* a leaf module's forward begins */
	SENTINEL_BOUNDARY_BACKWARD = 2, /* a leaf module's backward begins */
	SENTINEL_BOUNDARY_OPTIMIZER = 3, /* optimizer.step() begins */
	SENTINEL_BOUNDARY_CUT = 4, /* the cursor reached a cut, or the optimizer a parameter's turn */
	SENTINEL_BOUNDARY_OUTSIDE =
		5, /* the first allocation after a leaf's forward ended and no other began; layer 0 */
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
#define SENTINEL_SLOT_PLANNED (1u << 0) /* offset is valid; else the heap serves this allocation */
#define SENTINEL_SLOT_DROP (1u << 1) /* give the pages back (MADV_DONTNEED) when the tensor dies */
#define SENTINEL_SLOT_POPULATE (1u << 2) /* at birth there are none: take them all in one call */
#define SENTINEL_SLOT_DROP_PARTS (1u << 3) /* as SENTINEL_SLOT_DROP, but for its parts alone */

struct sentinel_slot { /* 24 bytes; index = cursor of the allocation within the step */
	uint64_t bytes; /* exact size that must be asked for */
	uint64_t offset; /* in the arena, page-aligned */
	uint32_t flags;
	uint32_t reserved;
};

struct sentinel_part { /* 24 bytes: what a slot with SENTINEL_SLOT_DROP_PARTS gives back */
	uint64_t offset; /* in the arena, page-aligned, within the slot's pages */
	uint64_t bytes; /* whole pages */
	uint32_t slot;
	uint32_t reserved;
};

struct sentinel_region { /* 24 bytes: births in [offset, offset + bytes) prefer this node */
	uint64_t offset;
	uint64_t bytes;
	int32_t node; /* -1: no policy, the kernel's first touch */
	uint32_t reserved;
};

/* layout.flags */
#define SENTINEL_LAYOUT_EMULATED (1u << 0) /* nodes are only thought of: bind nothing, keep residency */

/* access.flags */
#define SENTINEL_ACCESS_HEAP (1u << 0) /* offset counts from the heap's base, not the arena's */
#define SENTINEL_ACCESS_AT_BIRTH (1u << 1) /* pages are born in this stretch, on node; no look at the map */

struct sentinel_access { /* 32 bytes: emulated tiers only; rising by stretch */
	uint64_t offset; /* of the tensor, page-aligned */
	uint64_t slow_ps; /* what each slow page costs in this stretch, in picoseconds */
	uint32_t pages; /* of the tensor */
	uint32_t touched; /* pages that the stretch touches: what the meter counts */
	uint32_t stretch;
	uint16_t flags;
	int16_t node; /* of its birth, for pages that are not there yet */
};

/* A byte for each page: 0 not there, else 1 + its node. The process writes births and drops, the
   daemon moves; a page in flight stays where it was. Then the heap's map; each part 8-byte aligned.
   A birth that finds no page left on node 0 goes to node 1, as the kernel would have it. */
struct sentinel_residency { /* 128 bytes */
	uint64_t magic;
	uint32_t version;
	uint32_t page_bytes;
	uint64_t layout_id;
	uint64_t arena_offset;
	uint64_t arena_pages;
	uint64_t heap_offset;
	uint64_t heap_pages;
	uint64_t owed_ns; /* delays that slow pages have cost since tiers were emulated first */
	uint64_t paid_ns; /* time spent on them; differs by what is yet to be paid */
	int64_t moved_fast; /* written by the daemon: pages it has moved to node 0, less those away from it */
	uint64_t flying_fast; /* written by the daemon: pages on their way there, which hold room */
	int64_t fast_own; /* pages of node 0 that are taken, but for moved_fast */
	uint64_t fast_limit; /* pages that node 0 has; 0: no end to them */
	uint64_t reserved[3];
};

#define SENTINEL_HUGE_BYTES (2ull << 20) /* the largest; the arena begins at a multiple */

struct sentinel_huge { /* 16 bytes; may be huge pages, the rest of the arena may not */
	uint64_t offset; /* in the arena, page-aligned */
	uint64_t bytes; /* whole pages */
};

struct sentinel_wait { /* 8 bytes; index = boundary within the step */
	uint32_t boundary; /* before this boundary is passed, moves of boundaries <= this are complete */
	uint32_t flags; /* bit 0: a wait is asked for; bit 1: the boundary meant is of the step before */
};

/* header, then slots, cuts (uint32_t cursor each, rising), regions, waits, parts (rising by slot, then
   by offset), accesses, huge ranges (rising); each 8-byte aligned, in this order */
struct sentinel_layout {
	uint64_t magic;
	uint32_t version;
	uint32_t slot_count; /* allocations >= 4 KiB in a step */
	uint64_t layout_id;
	uint64_t arena_bytes;
	uint32_t cut_count;
	uint32_t region_count;
	uint32_t boundary_count; /* boundaries in a step, cuts and boundary 0 included */
	int32_t heap_node; /* births in the heap prefer this node; -1: leave as it is */
	uint64_t slots_offset;
	uint64_t cuts_offset;
	uint64_t regions_offset;
	uint64_t waits_offset;
	uint64_t total_bytes;
	uint32_t flags;
	uint32_t access_count;
	uint64_t accesses_offset; /* looked at if there are any */
	uint64_t fast_pages; /* emulated: pages that node 0 has for arena and heap; 0: no end of them */
	uint64_t parts_offset;
	uint32_t part_count;
	uint32_t huge_count;
	uint64_t huge_offset; /* looked at if there are any */
};

#endif
