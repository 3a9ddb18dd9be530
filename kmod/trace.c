// SPDX-License-Identifier: GPL-2.0-only
/* Defines the tracepoint that sentinel_trace.h declares. */
#include "compat.h"

#define CREATE_TRACE_POINTS
#include "sentinel_trace.h"
