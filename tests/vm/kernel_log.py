# SPDX-License-Identifier: Apache-2.0
"""Finds problems in a kernel log."""

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


def hit_stale_breakpoint(log: str) -> bool:
    """Whether the kernel crashed on a breakpoint that it had already removed.

    The kernel patches code with the help of breakpoints (text_poke_bp in
    arch/x86/kernel/alternative.c). With one thread per CPU, QEMU 7.2 sometimes
    translates the code while a breakpoint is being removed, and then continues to use
    this stale translation.
    """
    return STALE_BREAKPOINT.search(log) is not None


def problems(log: str) -> list[str]:
    """The lines of LOG that report a problem, in order."""
    return [line for line in log.splitlines() if PROBLEM.search(line)]
