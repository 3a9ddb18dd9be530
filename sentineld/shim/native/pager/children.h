/* SPDX-License-Identifier: Apache-2.0 */
/* The children that the process has forked, and the file pages that are held for them. The functions
   need the lock. */
#ifndef SENTINELD_SHIM_CHILDREN_H
#define SENTINELD_SHIM_CHILDREN_H

#include "pages.h"

struct child;

/* Prepare for a fork(). Returns NULL if no memory, descriptor or mapping is available. */
struct child *make_child(void);

/* After a fork(), in the parent: hold the file pages that the child may read. child: the result of
   make_child(). */
void keep_child(struct pager *pager, struct child *child);

/* After a fork(), in the child: close the descriptors of all children. child: as for keep_child(). */
void close_children(const struct pager *pager, const struct child *child);

/* Release the file pages that are held for children that have since ended or called exec(). */
void forget_children(struct pager *pager);

/* Free the list of children and close their descriptors. */
void delete_children(struct pager *pager);

#endif
