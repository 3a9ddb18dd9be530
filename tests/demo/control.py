# SPDX-License-Identifier: Apache-2.0
"""The demo's calls of sentinelctl."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

MANAGED_SECONDS = 240.0


class ControlError(RuntimeError):
    """sentinelctl failed, or a session did not become what was waited for."""


def sentinelctl(*arguments: str, timeout_s: float = 300.0) -> Any:
    """Run a verb with --json and return its answer."""
    command = ["sentinelctl", *arguments, "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    if result.returncode != 0:
        raise ControlError(f"`{' '.join(command)}`: {result.stderr.strip()}")
    return json.loads(result.stdout)


def attach(pid: int, policy: str, fast: str) -> None:
    """Begin to manage a process. fast: a share (100%) or bytes."""
    sentinelctl("attach", str(pid), "--policy", policy, "--fast", fast)


def session(pid: int) -> dict[str, Any]:
    """The session of a process."""
    for found in sentinelctl("status")["sessions"]:
        if found["pid"] == pid:
            row: dict[str, Any] = found
            return row
    raise ControlError(f"process {pid} has no session")


def wait_managed(pid: int) -> dict[str, Any]:
    """Until the session is managed; raises ControlError if it falls back or takes too long."""
    deadline = time.monotonic() + MANAGED_SECONDS
    while True:
        row = session(pid)
        if row["state"] == "managed":
            return row
        if row["state"] in ("registered", "ended") or time.monotonic() > deadline:
            raise ControlError(f"process {pid} is not managed: {row['state']}, {row['reason']}")
        time.sleep(1.0)


def meter(pid: int, steps: int) -> list[dict[str, Any]]:
    """Meter whole steps by the kernel module."""
    answer = sentinelctl("meter", str(pid), "--steps", str(steps), timeout_s=600.0)
    rows: list[dict[str, Any]] = answer["steps"]
    return rows


def plan(pid: int) -> dict[str, Any]:
    """The plan of a session, without its long parts."""
    answer = sentinelctl("plan", "show", str(pid))
    return {key: answer[key] for key in ("policy", "budget_bytes", "predicted") if key in answer}
