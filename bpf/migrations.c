/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Counts page migrations. The tracepoint migrate:mm_migrate_pages has one event for
 * each call of the kernel's migrate_pages(). The positions of the arguments mode and
 * reason differ between kernels. The loader reads the positions from the running
 * kernel's tracefs and defines MIGRATE_MODE_ARG and MIGRATE_REASON_ARG.
 */

#define MIGRATE_REASONS 16
#define MIGRATE_MODES 8

struct migration_key {
	u32 pid; /* id of the process or kernel thread (kswapd, kcompactd) that moved pages */
	u16 mode;
	u16 reason;
};

struct migration {
	u64 calls;
	u64 succeeded; /* pages */
	u64 failed; /* pages */
	char comm[16];
};

/* `migrations` has complete totals by reason; `migrations_by` is an LRU map and evicts rows */
BPF_ARRAY(migrations, struct migration, MIGRATE_REASONS);
BPF_TABLE("lru_hash", struct migration_key, struct migration, migrations_by, 1024);

static inline void count_migration(struct migration *row, u64 succeeded, u64 failed)
{
	__sync_fetch_and_add(&row->calls, 1);
	__sync_fetch_and_add(&row->succeeded, succeeded);
	__sync_fetch_and_add(&row->failed, failed);
}

int on_migrate_pages(struct bpf_raw_tracepoint_args *ctx)
{
	u64 succeeded = ctx->args[0];
	u64 failed = ctx->args[1];
	u32 mode = ctx->args[MIGRATE_MODE_ARG];
	u32 reason = ctx->args[MIGRATE_REASON_ARG];
	struct migration_key key = {};
	struct migration empty = {};
	struct migration *row;

	end_move();
	if (reason >= MIGRATE_REASONS || mode >= MIGRATE_MODES) {
		count_drops(DROP_MIGRATION, 1);
		return 0;
	}
	row = migrations.lookup(&reason);
	if (row)
		count_migration(row, succeeded, failed);
	key.pid = bpf_get_current_pid_tgid() >> 32;
	key.mode = mode;
	key.reason = reason;
	row = migrations_by.lookup(&key);
	if (!row) {
		bpf_get_current_comm(&empty.comm, sizeof(empty.comm));
		migrations_by.insert(&key, &empty);
		row = migrations_by.lookup(&key);
	}
	if (row)
		count_migration(row, succeeded, failed);
	return 0;
}
