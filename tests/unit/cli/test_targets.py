# SPDX-License-Identifier: Apache-2.0
"""The target of a verb: a process, a cgroup or a systemd unit."""

from __future__ import annotations

import click
import pytest

from sentineld.cli.targets import target_arguments


def test_a_target_is_a_process_or_a_cgroup() -> None:
    assert target_arguments(7, None, None) == {"pid": 7}
    assert target_arguments(None, "/app", None) == {"cgroup": "/app"}


@pytest.mark.parametrize(
    ("pid", "cgroup", "unit"), [(None, None, None), (7, "/app", None), (None, "/app", "cron")]
)
def test_there_is_exactly_one_target(pid: int, cgroup: str, unit: str) -> None:
    with pytest.raises(click.UsageError, match="either PID, --cgroup or --unit"):
        target_arguments(pid, cgroup, unit)
