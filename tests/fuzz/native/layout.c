// SPDX-License-Identifier: Apache-2.0
/*
 * Fuzzes the layout that the shim reads from a memfd. The input is the memfd's contents. If
 * the shim accepts the layout, a few steps run.
 */
#include "world.h"

#include <string.h>

#define SLOTS_MAX 48u
#define BYTES_MAX (64u * PAGE_BYTES)
#define BOUNDARIES_MAX 48u
#define STEPS 3

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct sentinel_layout header;

/* The allocation's size: slot->bytes in even steps, the smallest allowed size in odd steps. */
static uint64_t size_in(const struct sentinel_slot *slot, int step)
{
	uint64_t slack = slot->slack * (uint64_t)SENTINEL_TENSOR_BYTES_MIN;

	if (step % 2 == 0 || slot->bytes < SENTINEL_TENSOR_BYTES_MIN)
		return slot->bytes;
	return slot->bytes - SENTINEL_TENSOR_BYTES_MIN < slack ? SENTINEL_TENSOR_BYTES_MIN
							       : slot->bytes - slack;
}

/* Does the step that the layout describes, but with limited numbers of tensors and boundaries. */
static void train(const uint8_t *file, int step)
{
	uint32_t boundaries = header.boundary_count - header.cut_count;

	world_hook(HOOK_STEP_BEGIN, 0);
	for (uint32_t i = 0; i < header.slot_count && i < SLOTS_MAX; i++) {
		struct sentinel_slot slot;

		memcpy(&slot, file + header.slots_offset + i * sizeof(slot), sizeof(slot));
		if (slot.bytes > BYTES_MAX)
			break;
		if (step % 3 == 2 && slot.flags & SENTINEL_SLOT_OPTIONAL)
			continue;
		tensor_new(size_in(&slot, step));
		/* Some tensors die within the step, some outlive it. */
		if (i % 3 == 1)
			tensor_free(i / 2);
		if (i + 1 < boundaries)
			world_hook(i % 2 ? HOOK_FORWARD : HOOK_BACKWARD, i);
	}
	for (uint32_t i = header.slot_count; i + 1 < boundaries && i < BOUNDARIES_MAX; i++)
		world_hook(HOOK_FORWARD, i);
	world_hook(HOOK_STEP_END, 0);
	while (tensor_count() > 4)
		tensor_free(0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	world_begin(data, size, NULL);
	shim.control->flags = SENTINEL_FLAG_RECORD;
	shim.control->moves_done = UINT64_MAX;
	tensor_new(PAGE_BYTES);
	if (!sentinel_layout(file_of(data, size))) {
		memcpy(&header, data, sizeof(header));
		for (int step = 0; step < STEPS; step++)
			train(data, step);
		/* The second layout replaces the first arena although tensors are live in it. */
		sentinel_layout(file_of(data, size));
		train(data, STEPS);
		sentinel_detach();
		world_hook(HOOK_STEP_BEGIN, 0);
	}
	world_end();
	return 0;
}
