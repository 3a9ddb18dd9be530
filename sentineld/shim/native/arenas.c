// SPDX-License-Identifier: Apache-2.0
#include "arenas.h"

#include "shim.h"

struct arena *arena_of(const void *address)
{
	struct arena *arena = shim.arena;

	if (arena && arena_owns(arena, address))
		return arena;
	for (arena = shim.older; arena; arena = arena->older)
		if (arena_owns(arena, address))
			return arena;
	return NULL;
}

bool arena_holds(const void *address)
{
	struct arena *arena = arena_of(address);

	return arena && arena_find(arena, address) >= 0;
}

void delete_empty_arenas(void)
{
	struct arena **link = &shim.older;

	while (*link) {
		struct arena *arena = *link;

		if (arena->live_tensors) {
			link = &arena->older;
			continue;
		}
		*link = arena->older;
		arena_delete(arena);
	}
}
