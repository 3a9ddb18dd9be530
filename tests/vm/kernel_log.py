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


def problems(log: str) -> list[str]:
    """The lines of LOG that tell of a kernel problem, in order."""
    return [line for line in log.splitlines() if PROBLEM.search(line)]
