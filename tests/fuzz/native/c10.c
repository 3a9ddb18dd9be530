// SPDX-License-Identifier: Apache-2.0
/*
 * libc10.so for the fuzzers and for tests/sanitize: the two functions of torch's libc10 that the
 * shim interposes.
 */
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
#define ALIGNMENT 64

EXPORT void *_ZN3c109alloc_cpuEm(size_t bytes);
EXPORT void _ZN3c108free_cpuEPv(void *address);

void *_ZN3c109alloc_cpuEm(size_t bytes)
{
	void *address;

	return bytes && !posix_memalign(&address, ALIGNMENT, bytes) ? address : NULL;
}

void _ZN3c108free_cpuEPv(void *address)
{
	free(address);
}
