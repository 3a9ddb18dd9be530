# SPDX-License-Identifier: Apache-2.0
"""Waits until a guest's kernel log is complete, and finds problems in it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Sequence

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
    | \bbad\ (?:pgd|p4d|pud|pmd|pte)\b
    | \b(?:Bad|Unused)\ swap\ (?:file|offset)\ entry\b
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


class Marks:
    """Marks in a guest's kernel log. The serial line lags behind the kernel. Once a mark is in the
    log's file, all earlier messages are in the file, too."""

    def __init__(self, command: Sequence[str], log: Callable[[], str]) -> None:
        """command: writes each line of its input into the kernel log. log: returns the log."""
        self._log = log
        self._written = 0
        self._writer = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )

    def arrives(self, limit_s: float) -> bool:
        """Write a new mark. Returns whether it is in the log within limit_s."""
        assert self._writer.stdin is not None
        self._written += 1
        mark = f"vm: mark {self._written}"
        deadline_s = time.monotonic() + limit_s
        with contextlib.suppress(OSError):  # the command has ended
            self._writer.stdin.write(f"{mark}\n")
        while mark not in self._log():
            if self._writer.poll() is not None or time.monotonic() > deadline_s:
                return False
            time.sleep(0.05)
        return True

    def close(self) -> None:
        """End the command."""
        self._writer.kill()
        with contextlib.suppress(OSError):  # the command has not read the last mark
            self._writer.communicate()
