/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The only ioctl of the kernel module that a training process may call. Its definition
 * is copied from kmod/sentinel_uapi.h (struct sentinel_epoch), so that the shim builds
 * even if only this folder is installed. A test compares the two definitions.
 */
#ifndef SENTINELD_SHIM_EPOCH_H
#define SENTINELD_SHIM_EPOCH_H

#include <stdint.h>
#include <sys/ioctl.h>

#define EPOCH_RESIDENCY (1u << 0)

struct epoch_request {
	uint32_t flags;
	uint32_t epoch; /* out: the epoch that begins now */
	uint64_t rearmed_pages; /* out: number of pages armed when the epoch began */
	uint64_t reserved[2];
};

#define EPOCH_IOCTL _IOWR(0xE5, 0x06, struct epoch_request)

#endif
