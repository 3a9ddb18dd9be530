# SPDX-License-Identifier: Apache-2.0
"""Finds in a kernel log the lines that no healthy kernel writes."""

from __future__ import annotations

import re

PROBLEM = re.compile(
    r"""
      \bWARNING:\s
    | \bBUG:\s
    | \bOops\b
    | \bKernel\ panic\b
    | \bgeneral\ protection\b
    | \bunable\ to\ handle\b
    | \bKASAN\b | \bUBSAN\b | \bKCSAN\b
    | \bCall\ Trace:
    | \bsoft\ lockup\b | \bhard\ LOCKUP\b
    | \brcu.*(?:self-detected\ stall|detected\ stalls|kthread\ starved)
    | \btask\ \S+\ blocked\ for\ more\ than\b
    | \blist_(?:add|del)\ corruption\b
    | \brefcount_t:\s
    | \bBad\ (?:page\ (?:state|map)|rss-counter)\b
    | \bscheduling\ while\ atomic\b
    | \bdouble\ fault\b
    """,
    re.VERBOSE,
)

STALE_BREAKPOINT = re.compile(r"\bint3: [0-9]+ \[#1\]")


def met_stale_breakpoint(log: str) -> bool:
    """Whether the kernel of LOG died of a breakpoint that it set while patching itself.

    QEMU 7.2 with one thread a CPU may translate code anew just while the kernel
    takes its breakpoint (arch/x86/kernel/alternative.c, text_poke_bp) out of it,
    and keep what it read; no real CPU does.
    """
    return STALE_BREAKPOINT.search(log) is not None


def problems(log: str) -> list[str]:
    """The lines of LOG that tell of a kernel problem, in order."""
    return [line for line in log.splitlines() if PROBLEM.search(line)]
