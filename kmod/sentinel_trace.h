/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tracepoint sentinel:page_access: one event for each access that is recorded, or would be
 * if the log had room. Three kinds of recorded accesses have no event: accesses to present
 * huge pages, accesses that AGE finds, and the writes that sentinel_note_late() records.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM sentinel

#if !defined(SENTINEL_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define SENTINEL_TRACE_H

#include <linux/tracepoint.h>

#include "sentinel_uapi.h"

/* clang-format off */
TRACE_EVENT(page_access,

	TP_PROTO(pid_t tgid, unsigned long address, u32 epoch, u32 node, u32 flags),

	TP_ARGS(tgid, address, epoch, node, flags),

	TP_STRUCT__entry(
		__field(pid_t, tgid)
		__field(unsigned long, address)
		__field(u32, epoch)
		__field(u32, node)
		__field(bool, write)
		__field(bool, birth)
	),

	TP_fast_assign(
		__entry->tgid = tgid;
		__entry->address = address;
		__entry->epoch = epoch;
		__entry->node = node;
		__entry->write = flags & SENTINEL_ACCESS_WRITE;
		__entry->birth = flags & SENTINEL_ACCESS_BIRTH;
	),

	TP_printk("tgid=%d address=0x%lx epoch=%u node=%u write=%d birth=%d",
		  __entry->tgid, __entry->address, __entry->epoch, __entry->node,
		  __entry->write, __entry->birth)
);
/* clang-format on */

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE sentinel_trace
#include <trace/define_trace.h>
