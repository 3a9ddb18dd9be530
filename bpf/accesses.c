/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Counts the events of sentinel:page_access, the kernel module's tracepoint (kmod/),
 * so that their number can be compared with the module's own log.
 * The tracepoint's arguments:
 * TP_PROTO(pid_t tgid, unsigned long address, u32 epoch, u32 node, u32 flags)
 */

#define ACCESS_WRITE (1u << 0) /* SENTINEL_ACCESS_WRITE of kmod/sentinel_uapi.h */

int on_page_access(struct bpf_raw_tracepoint_args *ctx)
{
	u32 pid = ctx->args[0];
	struct watch *watch = watched.lookup(&pid);

	if (!watch)
		return 0;
	__sync_fetch_and_add(&watch->accesses, 1);
	if (ctx->args[4] & ACCESS_WRITE)
		__sync_fetch_and_add(&watch->access_writes, 1);
	watch->epoch = ctx->args[2];
	return 0;
}
