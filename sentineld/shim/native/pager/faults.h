/* SPDX-License-Identifier: Apache-2.0 */
/* Serves accesses to pages that are not in memory. */
#ifndef SENTINELD_SHIM_FAULTS_H
#define SENTINELD_SHIM_FAULTS_H

#include "pages.h"

/* The main function of the thread that serves faults; takes the lock. */
void *serve_faults(void *pager);

#endif
