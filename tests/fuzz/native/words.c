// SPDX-License-Identifier: Apache-2.0
/*
 * While a training runs, fuzzes the words that the daemon writes to the control
 * segment (memory that the shim shares with the daemon). The input is a sequence of
 * actions of the training (tensors, boundaries, steps) and of the daemon (words,
 * layouts, descriptors). The daemon also acts while the training waits at a barrier.
 */
#define _GNU_SOURCE
#include "world.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SLOTS_MAX 16u
#define REGIONS_MAX 3u
#define BOUNDARIES_MAX (SLOTS_MAX + 16u)
#define ACTIONS_MAX 400u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The allocations and boundaries of a step, taken from the last layout that was sent. */
static uint64_t sizes[SLOTS_MAX];
static uint32_t size_count;
static uint32_t boundaries;

/* The daemon's actions. */

/* Takes a value from the input: one near a meaningful value (a count, a position, a time), or any value. */
static uint64_t take_value(void)
{
	uint8_t kind = take8();
	int8_t off = (int8_t)take8();

	switch (kind % 8) {
	case 0:
		return (uint64_t)off;
	case 1:
		return shim.ring_head + (uint64_t)off;
	case 2:
		return shim.control->position + (uint64_t)off;
	case 3:
		return world_now_ns() + (uint64_t)(off * 100000000ll);
	case 4:
		return (shim.step + (uint64_t)off) << 32 | take8();
	case 5:
		return 1ull << (off & 63);
	default:
		return take64();
	}
}

static void write_word(void)
{
	uint8_t which = take8();
	uint64_t value = take_value();

	switch (which % 8) {
	case 0:
	case 1:
		__atomic_store_n(&shim.control->flags, (uint32_t)value, __ATOMIC_SEQ_CST);
		break;
	case 2:
		publish(heartbeat, value);
		break;
	case 3:
		publish(ring_tail, value);
		break;
	case 4:
		publish(moves_done, value);
		break;
	case 5:
		publish(wake_position, value);
		break;
	case 6:
		publish(barrier_timeout_ns, value);
		break;
	default:
		/* Overwrite any eight bytes of the segment, even those that only the shim may write. */
		memcpy((char *)shim.control +
			       take16() % (PAGE_BYTES + RING_RECORDS * sizeof(*shim.ring) - sizeof(value)),
		       &value, sizeof(value));
	}
}

static void while_asleep(void)
{
	if (take8() % 4 == 0)
		write_word();
}

struct layout_file {
	struct sentinel_layout header;
	struct sentinel_slot slots[SLOTS_MAX];
	uint32_t cuts[SLOTS_MAX];
	struct sentinel_region regions[REGIONS_MAX];
	struct sentinel_wait waits[BOUNDARIES_MAX];
};

/* Sends a mostly valid layout, perhaps truncated, with up to three changed bytes. */
static void send_layout(void)
{
	static struct layout_file file;
	struct sentinel_layout *header = &file.header;
	uint16_t cut_at = take16();
	uint8_t patches, *bytes = (uint8_t *)&file;

	memset(&file, 0, sizeof(file));
	*header = (struct sentinel_layout){
		.magic = SENTINEL_LAYOUT_MAGIC,
		.version = SENTINEL_SHIM_VERSION,
		.layout_id = 1,
		.slot_count = take8() % (SLOTS_MAX + 1),
		.arena_bytes = (uint64_t)take8() * PAGE_BYTES,
		.region_count = take8() % (REGIONS_MAX + 1),
		.heap_node = (int32_t)(take8() % 8) - 5,
		.slots_offset = offsetof(struct layout_file, slots),
		.cuts_offset = offsetof(struct layout_file, cuts),
		.regions_offset = offsetof(struct layout_file, regions),
		.waits_offset = offsetof(struct layout_file, waits),
		.total_bytes = sizeof(file),
	};
	if (header->heap_node < -1)
		header->heap_node = -1;
	for (uint32_t i = 0; i < header->slot_count; i++) {
		uint8_t size = take8();

		file.slots[i].bytes = (1 + size % 16) * PAGE_BYTES + (size >> 4);
		file.slots[i].offset = (uint64_t)take8() * PAGE_BYTES;
		file.slots[i].flags = take8() % 4;
		sizes[i] = file.slots[i].bytes;
		if (cut_at >> i & 1)
			file.cuts[header->cut_count++] = i;
	}
	size_count = header->slot_count;
	for (uint32_t i = 0; i < header->region_count; i++) {
		file.regions[i].offset = (uint64_t)take8() * PAGE_BYTES;
		file.regions[i].bytes = (uint64_t)take8() * PAGE_BYTES;
		file.regions[i].node = (int32_t)(take8() % 3) - 1;
	}
	boundaries = 1 + take8() % 8;
	header->boundary_count = boundaries + header->cut_count;
	for (uint32_t i = 0; i < header->boundary_count; i++) {
		uint8_t wait = take8();

		file.waits[i].flags = wait & 3;
		file.waits[i].boundary = (uint32_t)(wait >> 2) % header->boundary_count;
	}
	for (patches = take8() % 4; patches; patches--) {
		uint16_t at = take16() % sizeof(file);

		bytes[at] = take8();
	}
	sentinel_layout(file_of(&file, sizeof(file) - take8() % 64));
}

/* Sends a descriptor that cannot be read as a layout. */
static void send_odd_layout(void)
{
	int pipes[2] = {-1, -1}, kind = take8() % 4, fd = -1;

	if (kind == 0)
		fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	else if (kind == 1)
		fd = open("/", O_RDONLY | O_CLOEXEC | O_DIRECTORY);
	else if (kind == 2 && !pipe2(pipes, O_CLOEXEC | O_NONBLOCK))
		fd = pipes[0];
	sentinel_layout(fd);
	if (fd >= 0)
		close(fd);
	if (pipes[1] >= 0)
		close(pipes[1]);
}

/*
 * Passes a descriptor to the shim as its epoch fd; from then on, the shim owns it. The
 * descriptor is not one of the kernel module, so no epoch begins.
 */
static void send_epoch_fd(void)
{
	switch (take8() % 4) {
	case 0:
		sentinel_epoch_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
		break;
	case 1:
		sentinel_epoch_fd(open("/dev/null", O_RDWR | O_CLOEXEC));
		break;
	default:
		sentinel_epoch_fd(-1);
	}
}

/* The training's actions. */

static void allocate(void)
{
	uint8_t size = take8();

	if (size < 16)
		tensor_new(8 + size); /* below SENTINEL_TENSOR_BYTES_MIN */
	else
		tensor_new((size % 64) * (uint64_t)PAGE_BYTES + take8());
}

/* Do the step that the last layout describes. */
static void whole_step(void)
{
	uint8_t died = take8();

	for (uint32_t i = 0; i < size_count; i++) {
		if (i + 1 < boundaries)
			world_hook(HOOK_FORWARD, i);
		tensor_new(sizes[i]);
		if (died >> (i % 8) & 1)
			tensor_free(tensor_count() - 1);
	}
	for (uint32_t i = size_count; i + 1 < boundaries; i++)
		world_hook(HOOK_BACKWARD, i);
	world_hook(HOOK_STEP_END, 0);
	if (died & 1)
		while (tensor_count())
			tensor_free(0);
	world_hook(HOOK_STEP_BEGIN, 0);
}

static void act_on_other_thread(void)
{
	uint8_t what = take8();

	if (what % 4 == 0)
		world_hook(HOOK_STEP_BEGIN, 0);
	else if (what % 4 == 1)
		tensor_free(take8());
	else
		allocate();
}

static void act(void)
{
	uint8_t what = take8();

	switch (what % 16) {
	case 0:
	case 1:
		allocate();
		break;
	case 2:
		tensor_free(take8());
		break;
	case 3:
		world_hook((enum hook)(take8() % 6), take8());
		break;
	case 4:
		world_hook(HOOK_STEP_END, 0);
		world_hook(HOOK_STEP_BEGIN, 0);
		break;
	case 5:
	case 6:
		whole_step();
		break;
	case 7:
	case 8:
		send_layout();
		break;
	case 9:
	case 10:
	case 11:
		write_word();
		break;
	case 12:
		sentinel_detach();
		break;
	case 13:
		world_on_other_thread(act_on_other_thread);
		break;
	case 14:
		sentinel_connected(take8() & 1);
		break;
	default:
		switch (take8() % 8) {
		case 0:
			send_odd_layout();
			break;
		case 1:
			send_epoch_fd();
			break;
		case 2:
			sentinel_enable(take8() & 1);
			break;
		case 3:
			world_fork();
			break;
		default:
			/*
			 * Act as a working daemon: set the heartbeat, read all records, and let the
			 * shim record.
			 */
			publish(heartbeat, world_now_ns());
			publish(ring_tail, shim.ring_head);
			publish(barrier_timeout_ns, 1000000000ull);
			publish(flags, (uint32_t)SENTINEL_FLAG_RECORD);
		}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_count = boundaries = 0;
	world_begin(data, size, while_asleep);
	for (unsigned actions = 0; input_left() && actions < ACTIONS_MAX; actions++)
		act();
	world_end();
	return 0;
}
