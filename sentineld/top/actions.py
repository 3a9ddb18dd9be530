# SPDX-License-Identifier: Apache-2.0
"""The requests that the keys of the live view send to the daemon. Each action returns a line about
its result, or raises SentinelError."""

from __future__ import annotations

from sentineld.top.lines import format_share
from sentineld.top.polling import Control


def switch(control: Control, pid: int, **wanted: str) -> str:
    """Attach a process, or give it another budget (`fast`) or `policy`. Blocks until the new plan
    is made, if the process is managed."""
    session = control.ask_long("attach", pid=pid, **wanted)
    return f"process {pid}: policy {session['policy']}, fast {session['fast']}"


def detach(control: Control, pid: int) -> str:
    """Stop managing a process. Blocks while a plan is made for it."""
    control.ask_long("detach", pid=pid)
    return f"detached {pid}"


def meter(control: Control, pid: int) -> str:
    """Meter one step of a process."""
    (step,) = control.ask_long("meter", pid=pid, steps=1)["steps"]
    share = format_share(step["fast_share"], 1)
    return f"process {pid}: the fast tier served {share} of the accesses of step {step['step']}"
