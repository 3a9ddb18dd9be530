# SPDX-License-Identifier: Apache-2.0
"""The demo's requests to the daemon, sent to its control socket.

sentinelctl is not used, because starting it takes seconds on the emulated CPU and would delay the
training.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from sentineld.config import load
from sentineld.control.client import request

PLANNER = b"sentineld.planner.child"
MANAGED_SECONDS = 1200.0
"""An emulated CPU needs minutes to plan with `auto`."""


class ControlError(RuntimeError):
    """A process has no session, or its session did not reach the expected state."""


def ask(verb: str, **arguments: Any) -> Any:
    """The daemon's answer to a verb; raises SentinelError."""
    return request(Path(load().control_socket), verb, **arguments)


def attach(pid: int, policy: str, fast: str) -> None:
    """Begin to manage a process. fast: the budget, as a share of the peak ("100%") or in bytes."""
    ask("attach", pid=pid, policy=policy, fast=fast)


def session(pid: int) -> dict[str, Any]:
    """The session of a process, as `status` returns it. Raises ControlError if there is none."""
    for found in ask("status")["sessions"]:
        if found["pid"] == pid:
            row: dict[str, Any] = found
            return row
    raise ControlError(f"process {pid} has no session")


def wait_managed(pid: int) -> dict[str, Any]:
    """Wait until the session is managed. Raises ControlError if management ends or the wait times
    out."""
    deadline = time.monotonic() + MANAGED_SECONDS
    while True:
        row = session(pid)
        if row["state"] == "managed":
            return row
        if row["state"] in ("registered", "ended") or time.monotonic() > deadline:
            raise ControlError(f"process {pid} is not managed: {row['state']}, {row['reason']}")
        time.sleep(0.5)


def planning() -> bool:
    """Whether a planning process of the daemon runs."""
    for process in Path("/proc").glob("[0-9]*"):
        # After a process has exited, its file `cmdline` is missing or empty.
        with contextlib.suppress(OSError):
            if PLANNER in (process / "cmdline").read_bytes().split(b"\0"):
                return True
    return False


def meter(pid: int, steps: int) -> list[dict[str, Any]]:
    """Meter whole steps with the kernel module; return a row per step."""
    rows: list[dict[str, Any]] = ask("meter", pid=pid, steps=steps)["steps"]
    return rows


def plan(pid: int, bound: bool) -> dict[str, Any]:
    """The plan of a session, without its moves and tensors.

    bound: include the fast-share bound, which takes minutes on an emulated CPU.
    """
    answer = ask("plan", pid=pid, bound=bound)
    keys = ("policy", "budget_bytes", "predicted", "notes", "bound")
    return {key: answer[key] for key in keys if key in answer}
