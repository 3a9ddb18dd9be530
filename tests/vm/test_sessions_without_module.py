# SPDX-License-Identifier: Apache-2.0
"""A training without the module: the shim profiles the training's operators, and another backend
checks this profile."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from .guest import Guest
from .training import (
    FOR_USERS,
    NO_EBPF,
    USERS_FOLDER,
    WITHOUT_EBPF,
    Training,
    metrics,
    refused,
    training_in,
    wait,
)

pytestmark = [pytest.mark.guest, pytest.mark.second]

KDAMONDS = "/sys/kernel/mm/damon/admin/kdamonds"

TAKE_DAMON = f"""
set -e
cd {KDAMONDS}
echo 1 > nr_kdamonds
echo 1 > 0/contexts/nr_contexts
echo vaddr > 0/contexts/0/operations
echo 1 > 0/contexts/0/targets/nr_targets
echo 1 > 0/contexts/0/targets/0/pid_target
echo on > 0/state
"""
"""Starts DAMON on process 1, as another program could."""
FILTER = "/run/no-userfaultfd.bpf"
MAKE_FILTER = f"""
import struct
# Load the system call number; userfaultfd (323) fails with EPERM, all others are allowed.
program = [(0x20, 0, 0, 0), (0x15, 0, 1, 323), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
with open({FILTER!r}, "wb") as file:
    file.writelines(struct.pack("<HBBI", *line) for line in program)
"""
"""Writes a seccomp filter that refuses userfaultfd, as container runtimes do."""

FREE_DAMON = f"echo off > {KDAMONDS}/0/state; echo 0 > {KDAMONDS}/nr_kdamonds"


@pytest.fixture(scope="module")
def training(installed: Guest) -> Iterator[Training]:
    """A user's training under a daemon that runs without the module."""
    guest = installed
    guest.run("systemctl stop sentineld; rmmod sentinel; id trainer 2>/dev/null || useradd trainer")
    # otherwise the daemon's systemd unit would load the module
    guest.run("echo 'install sentinel /bin/false' > /etc/modprobe.d/no-sentinel.conf")
    guest.run(WITHOUT_EBPF)  # other tests cover eBPF
    guest.run("systemctl start sentineld", timeout=180)
    guest.run(FOR_USERS)
    started = Training(
        guest,
        "setpriv --reuid trainer --regid trainer --clear-groups python3 -m sentineld.shim",
        training_in(USERS_FOLDER),
    )
    yield started
    started.end()
    guest.run(f"rm {NO_EBPF} /etc/modprobe.d/no-sentinel.conf")
    guest.run("systemctl stop sentineld; modprobe sentinel")


def managed(training: Training) -> dict[str, Any]:
    """Attach, and wait until the process is managed; returns the session."""
    training.guest.run(f"sentinelctl attach {training.pid} --fast 25% --policy sentinel+spill")
    wait("managed", lambda: training.in_state("managed"), 600)
    session = training.session()
    assert session is not None
    return session


def status(guest: Guest) -> dict[str, dict[str, Any]]:
    answer = json.loads(guest.run("sentinelctl status --json").stdout)
    return {one["name"]: one for one in answer["backends"]}


def test_status_shows_the_backend_and_why_better_ones_are_unusable(training: Training) -> None:
    found = status(training.guest)
    usable = [name for name, one in found.items() if one["usable"]]
    assert usable == ["damon", "pagemap-scan", "soft-dirty", "shim"]
    assert found["module"]["problem"] == "/dev/sentinel does not exist"
    assert "pages are observed by: damon" in training.guest.run("sentinelctl status").stdout


def test_the_operators_profile_is_checked_with_damon(training: Training) -> None:
    session = managed(training)
    assert session["source"] == "shim+damon"
    assert training.guest.run(f"cat {KDAMONDS}/nr_kdamonds").stdout.strip() == "0"
    tensors = json.loads(training.guest.run(f"sentinelctl tensors {training.pid} --json").stdout)
    assert sum(one["bytes_read"] for one in tensors["tensors"]) > 0
    assert sum(one["bytes_written"] for one in tensors["tensors"]) > 0
    training.expect_another_step()


def test_metering_requires_the_module(training: Training) -> None:
    line = refused(training.guest, f"sentinelctl meter {training.pid}", "module-not-loaded")
    assert "modprobe sentinel" in line
    # The session may be entering a corrected plan.
    wait("managed", lambda: training.in_state("managed"), 240)


def test_pages_move_without_the_module(training: Training) -> None:
    moved = r'^sentineld_migrated_bytes_total{.*result="moved".*} (\S+)$'
    assert sum(map(float, re.findall(moved, metrics(training.guest), re.MULTILINE))) > 0


@pytest.mark.long
def test_damon_of_another_program_is_not_touched(training: Training) -> None:
    guest = training.guest
    guest.run(f"sentinelctl detach {training.pid}")
    guest.run(TAKE_DAMON)
    try:
        problem = status(guest)["damon"]["problem"]
        assert problem == "another program is using DAMON on process 1"
        session = managed(training)
        assert guest.run(f"cat {KDAMONDS}/0/state").stdout.strip() == "on"
        # PAGEMAP_SCAN observes written pages; the shim reported accesses to nearly all of them.
        assert session["source"] == "shim+pagemap-scan"
        assert session["untold_pages"] * 4096 < 0.02 * session["peak_bytes"]
        # The session has removed the write protection that PAGEMAP_SCAN uses.
        assert "uw" not in vm_flags(training)
    finally:
        guest.run(FREE_DAMON)
    training.expect_another_step()


def vm_flags(training: Training) -> set[str]:
    """The union of the flags of the process's mappings."""
    lines = training.guest.run(f"grep VmFlags /proc/{training.pid}/smaps").stdout.splitlines()
    return {flag for line in lines for flag in line.split()[1:]}


def test_detach_leaves_the_process_registered(training: Training) -> None:
    training.guest.run(f"sentinelctl detach {training.pid}")
    assert training.in_state("registered")
    training.expect_another_step()


@pytest.mark.long
def test_soft_dirty_is_used_if_the_process_has_no_userfaultfd(training: Training) -> None:
    guest = training.guest
    training.process.send_remote("STOP")  # two trainings at a time are slow
    guest.run(TAKE_DAMON)
    guest.run(["python3", "-c", MAKE_FILTER])
    confined = Training(
        guest, f"setpriv --no-new-privs --seccomp-filter {FILTER} python3 -m sentineld.shim"
    )
    try:
        guest.run(f"sentinelctl attach {confined.pid} --fast 25% --policy sentinel+spill")
        wait("managed", lambda: confined.in_state("managed"), 600)
        session = confined.session()
        assert session is not None
        assert session["source"] == "shim+soft-dirty"
        assert session["untold_pages"] * 4096 < 0.02 * session["peak_bytes"]
    finally:
        guest.run(FREE_DAMON)
        confined.end()
