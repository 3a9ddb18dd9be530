# SPDX-License-Identifier: Apache-2.0
"""The target of a verb (a command of sentinelctl): a process, a cgroup or a systemd unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from sentineld.host.systemd_unit import unit_cgroup

Function = TypeVar("Function", bound=Callable[..., Any])


def target_options(function: Function) -> Function:
    """Decorator that adds the argument PID and the options --cgroup and --unit."""
    for add in (
        click.option(
            "--unit",
            metavar="NAME",
            help="Instead of PID: the processes of a systemd unit, which must be active.",
        ),
        click.option(
            "--cgroup",
            metavar="PATH",
            help="Instead of PID: the processes of a cgroup and of its descendants. PATH is its "
            "folder, or its path as /proc/PID/cgroup shows it.",
        ),
        click.argument("pid", type=click.IntRange(min=1), required=False),
    ):
        function = add(function)
    return function


def target_arguments(pid: int | None, cgroup: str | None, unit: str | None) -> dict[str, Any]:
    """The target as arguments of a request to the daemon. Raises click.UsageError if there is not
    exactly one target, and SentinelError if the unit's cgroup cannot be found."""
    if [pid, cgroup, unit].count(None) != 2:
        raise click.UsageError("Give either PID, --cgroup or --unit.")
    if unit is not None:
        return {"cgroup": unit_cgroup(unit)}
    if cgroup is not None:
        return {"cgroup": cgroup}
    return {"pid": pid}
