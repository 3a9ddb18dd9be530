# SPDX-License-Identifier: Apache-2.0
"""The cgroup of a systemd unit."""

from __future__ import annotations

import os
import re
import subprocess

from sentineld.base.errors import SentinelError

ANSWER_S = 10.0
"""Time that systemctl may take."""
_NAME = re.compile(r"[A-Za-z0-9:_.\\@-]+")
_PROPERTIES = ("LoadState", "ActiveState", "ControlGroup")


def unit_cgroup(name: str) -> str:
    """The path of an active unit's cgroup, as /proc/PID/cgroup shows it.

    name: as for systemctl; without a suffix it is a service. For users other than root, units of
        the user's own manager are found if the system manager has no unit of this name.

    Raises SentinelError if there is no such unit, it is not active, or systemd does not answer.
    """
    if not _NAME.fullmatch(name):
        raise SentinelError(
            "usage", f"{name!r} is not the name of a unit", "see systemctl list-units"
        )
    text = _shown(name)
    if "LoadState=not-found" in text and os.geteuid() != 0:
        text = _shown(name, "--user")
    return cgroup_in(text, name)


def _shown(name: str, *options: str) -> str:
    """The properties of a unit, as systemctl shows them."""
    wanted = ",".join(_PROPERTIES)
    try:
        done = subprocess.run(
            ["systemctl", *options, "show", f"--property={wanted}", "--", name],
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
        )
    except FileNotFoundError:
        problem = "there is no systemctl"
    except subprocess.TimeoutExpired:
        problem = f"systemctl did not answer within {ANSWER_S:.0f} s"
    else:
        if done.returncode == 0:
            return done.stdout
        problem = next(iter(done.stderr.splitlines()), f"systemctl failed ({done.returncode})")
    raise SentinelError(
        "failed", f"unit {name} cannot be looked up: {problem}", "name its cgroup with --cgroup"
    )


def cgroup_in(text: str, name: str) -> str:
    """The path of the cgroup in the output of `systemctl show`. Raises SentinelError."""
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    if found.get("LoadState") == "not-found":
        raise SentinelError(
            "no-such-process", f"there is no unit {name}", "see systemctl list-units"
        )
    if found.get("ActiveState") != "active":
        raise SentinelError(
            "wrong-state",
            f"unit {name} is {found.get('ActiveState') or 'in an unknown state'}",
            f"run systemctl start {name} first",
        )
    path = found.get("ControlGroup", "")
    if path in ("", "/"):
        raise SentinelError(
            "wrong-state",
            f"unit {name} has no cgroup of its own",
            f"name the unit of the processes; see systemctl status {name}",
        )
    return path
