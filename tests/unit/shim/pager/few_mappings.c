// SPDX-License-Identifier: Apache-2.0
/* An open() that opens the file whose path is in `few_mappings` instead of
   /proc/sys/vm/max_map_count. Link this file with -Wl,--wrap=open. */
#include <fcntl.h>
#include <string.h>

const char *few_mappings;

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);

int __wrap_open(const char *path, int flags, ...)
{
	return __real_open(strcmp(path, "/proc/sys/vm/max_map_count") ? path : few_mappings, flags);
}
