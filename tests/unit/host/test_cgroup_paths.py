# SPDX-License-Identifier: Apache-2.0
"""Parsing of /proc/PID/cgroup."""

from __future__ import annotations

from sentineld.host.cgroup_paths import cgroup_paths


def test_each_controller_and_v2_have_their_path() -> None:
    text = "9:cpu,cpuacct:/job\n8:memory:/limit:ed\n1:name=systemd:/user.slice\n0::/\n"
    assert cgroup_paths(text) == {
        "cpu": "/job",
        "cpuacct": "/job",
        "memory": "/limit:ed",
        "name=systemd": "/user.slice",
        "": "/",
    }


def test_without_a_mounted_hierarchy_there_is_no_cgroup() -> None:
    assert cgroup_paths("") == {}
