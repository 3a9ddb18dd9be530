# SPDX-License-Identifier: Apache-2.0
"""Policy `temperature`: processes without the shim, kept in a budget by the kernel's swap."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sentineld.base.errors import SentinelError
from sentineld.control.client import request
from sentineld.model.records import PAGE_BYTES
from sentineld.observe.pidfd import children
from tests.idle_process import WELCOMED
from tests.integration.hot_cold import (
    HOT_MIB,
    MIB,
    SWAP_BYTES,
    TOTAL_MIB,
    Program,
    build,
    daemon_with_swap,
    wait,
)
from tests.integration.test_daemon import PATIENCE_S, Daemon
from tests.sentinelctl import refused
from tests.unit.block_process import block_process

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="swap can be enabled by root only"),
    pytest.mark.alone,
]

ROOT = Path(__file__).parents[2]
BUDGET_BYTES = 32 * MIB
SCAN_CPU_S_MAX = 10.0
"""Limit on the CPU time of one scan of a process with many mappings. It is several times the usual
time, because CPUs differ."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that is built from hot_cold.c."""
    return build(tmp_path_factory.mktemp("hot_cold"))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon_with_swap("zram", tmp_path_factory.mktemp("daemon")) as started:
        yield started


@pytest.fixture
def running(program: Path) -> Iterator[Program]:
    started = Program(program)
    yield started
    started.close()


def attach(daemon: Daemon, running: Program, fast: str = str(BUDGET_BYTES)) -> dict[str, Any]:
    done = daemon.ctl("attach", running.pid, "--policy", "temperature", "--fast", fast, "--json")
    assert done.returncode == 0, done.stderr
    session: dict[str, Any] = json.loads(done.stdout)["session"]
    return session


def session(daemon: Daemon, running: Program) -> dict[str, Any]:
    """The session of the process. Waits up to PATIENCE_S, because a busy daemon may answer late."""
    sessions: list[dict[str, Any]] = request(daemon.control, "status", PATIENCE_S)["sessions"]
    return next(one for one in sessions if one["pid"] == running.process.pid)


def wait_within_budget(daemon: Daemon, running: Program) -> None:
    def within() -> bool:
        found = session(daemon, running)
        return found["state"] == "managed" and running.resident_bytes() <= found["budget_bytes"]

    wait(within, "the resident bytes exceed the budget")


def check_residency(daemon: Daemon, running: Program) -> None:
    """Check that hot pages are resident and cold ones paged out, also after the hot set moves."""
    before = running.tell("sum")
    assert attach(daemon, running)["policy"] == "temperature"
    wait_within_budget(daemon, running)
    found = session(daemon, running)["swap"]
    assert found["paged_out_bytes"] > (TOTAL_MIB * MIB - BUDGET_BYTES) * 3 // 4
    wait(
        lambda: running.resident_share(0, HOT_MIB) > 0.95,
        "pages of the hot set are not in memory",
    )
    # The checksum reads all pages, so all pages return to memory.
    assert running.tell("sum") == before
    assert running.resident_bytes() > BUDGET_BYTES
    wait_within_budget(daemon, running)
    assert session(daemon, running)["swap"]["returned_bytes"] > 0
    # The hot set moves. The pages of the new hot set displace those of the old one.
    start_mib = TOTAL_MIB - HOT_MIB
    assert running.tell(f"hot {start_mib}") == "done"
    wait(
        lambda: (
            running.resident_share(start_mib, HOT_MIB) > 0.95
            and running.resident_bytes() <= BUDGET_BYTES
        ),
        "pages of the new hot set are not in memory",
    )
    assert running.tell("sum") == before


# The fixture `daemon` enables swap until the last test of this module has ended. So the tests that
# must run without this swap come before the first test that uses the fixture.


def test_without_swap_the_policy_is_refused(tmp_path: Path) -> None:
    if len(Path("/proc/swaps").read_text().splitlines()) > 1:
        pytest.skip("the machine has swap of its own")
    daemon = Daemon(tmp_path, "--tiers", "swap")
    try:
        line = refused(daemon.ctl("attach", str(os.getpid())), "no-second-tier")
        assert "no swap is enabled" in line
    finally:
        daemon.stop()


def test_residency_follows_heat_on_a_swap_file(running: Program, tmp_path: Path) -> None:
    with daemon_with_swap("file", tmp_path) as daemon:
        check_residency(daemon, running)


def test_residency_follows_heat_on_zram(daemon: Daemon, running: Program) -> None:
    check_residency(daemon, running)


def test_a_detached_process_continues(daemon: Daemon, running: Program) -> None:
    before = running.tell("sum")
    attach(daemon, running)
    wait_within_budget(daemon, running)
    assert daemon.ctl("detach", running.pid).returncode == 0
    assert daemon.session(running.process.pid) is None
    assert running.tell("sum") == before
    assert running.resident_share(0, TOTAL_MIB) == 1
    # After the detach, the process can be attached again.
    attach(daemon, running)
    assert running.tell("sum") == before


def test_status_and_metrics_show_the_session(daemon: Daemon, running: Program) -> None:
    attach(daemon, running, "50%")
    wait_within_budget(daemon, running)
    found = session(daemon, running)
    assert found["fast"] == "50%"
    assert found["budget_bytes"] == pytest.approx(TOTAL_MIB * MIB / 2, rel=0.1)
    text = daemon.ctl("status").stdout
    assert "tiers are memory and swap:" in text
    assert "are swapped out; paged out" in text
    url = f"http://127.0.0.1:{daemon.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        metrics = answer.read().decode()
    assert f'session="{running.pid}-' in metrics
    assert 'sentineld_swap_bytes_total{direction="out"' in metrics
    # Another budget takes effect without a new session.
    attach(daemon, running, "80%")
    assert session(daemon, running)["budget_bytes"] > TOTAL_MIB * MIB * 0.7
    assert session(daemon, running)["state"] == "managed"


def test_the_session_ends_with_the_process(daemon: Daemon, running: Program) -> None:
    attach(daemon, running)
    running.close()
    wait(lambda: daemon.session(running.process.pid) is None, "the session does not end")


def test_the_session_ends_at_an_exec(daemon: Daemon, running: Program) -> None:
    attach(daemon, running)
    running.execute_again()
    wait(lambda: daemon.session(running.process.pid) is None, "the session does not end")
    assert running.tell("sum")
    attach(daemon, running)


def test_the_session_ends_with_the_main_thread(daemon: Daemon) -> None:
    """After the main thread's exit, the kernel hides the memory that other threads still use."""
    with block_process() as process:
        request(daemon.control, "attach", pid=process.pid, fast="4MiB")
        process.end_main_thread()
        wait(lambda: daemon.session(process.pid) is None, "the session does not end")
        line = refused(daemon.ctl("attach", str(process.pid)), "not-permitted")
        assert "its main thread has exited" in line
        os.kill(process.pid, 9)


def test_the_session_ends_when_the_process_registers_by_the_shim(daemon: Daemon) -> None:
    script = "input(); import tests.idle_process; tests.idle_process.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(daemon.folder / "shim.sock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        request(daemon.control, "attach", pid=process.pid, fast="64MiB")
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == WELCOMED

        def states() -> list[tuple[str, bool]]:
            answer = request(daemon.control, "status", PATIENCE_S)
            found = [one for one in answer["sessions"] if one["pid"] == process.pid]
            return [(one["state"], one["swap"] is None) for one in found]

        wait(lambda: states() == [("registered", True)], "there is another session")
        pid = str(process.pid)
        line = refused(daemon.ctl("attach", pid, "--policy", "temperature"), "wrong-state")
        assert "is for processes without it" in line
        line = refused(daemon.ctl("attach", pid), "wrong-state")
        assert "--tiers paged" in line
    finally:
        process.kill()
        process.communicate()


def test_locked_and_shared_memory_stay(daemon: Daemon, running: Program) -> None:
    before = running.tell("sum")
    running.tell("lock 40")
    running.tell("share 4")
    attach(daemon, running, "16MiB")
    wait(
        lambda: "cannot be paged out" in session(daemon, running)["reason"],
        "the reason does not say that the budget cannot be kept",
    )
    assert session(daemon, running)["swap"]["skipped_bytes"] == {
        "locked": 40 * MIB,
        "shared": 4 * MIB,
    }
    assert "never paged out: locked 40.0 MiB, shared 4.0 MiB" in daemon.ctl("status").stdout
    assert running.resident_share(0, 40) == 1
    assert running.resident_share(40, TOTAL_MIB - 40) < 0.05
    assert running.tell("sum") == before


def test_memory_that_is_locked_while_it_is_managed_returns_and_stays(
    daemon: Daemon, running: Program
) -> None:
    before = running.tell("sum")
    attach(daemon, running)
    wait_within_budget(daemon, running)
    running.tell("lock 40")
    wait(
        lambda: session(daemon, running)["swap"]["skipped_bytes"] == {"locked": 40 * MIB},
        "the locked memory is not noticed",
    )
    assert running.resident_share(0, 40) == 1
    running.tell("unlock")
    wait_within_budget(daemon, running)
    wait(
        lambda: session(daemon, running)["swap"]["skipped_bytes"] == {},
        "the unlocked memory still counts as locked",
    )
    assert running.tell("sum") == before


def test_pages_that_a_child_shares_stay(daemon: Daemon, running: Program) -> None:
    before = running.tell("sum")
    running.tell("fork")
    attach(daemon, running)
    wait(
        lambda: "cannot be paged out" in session(daemon, running)["reason"],
        "the reason does not say that the budget cannot be kept",
    )
    # The hot set's pages are the parent's own copies, because it has written them since the fork.
    # All other pages are still shared with the child, so they stay resident.
    assert running.resident_share(HOT_MIB, TOTAL_MIB - HOT_MIB) == 1
    assert running.tell("sum") == before


def test_a_fork_of_a_managed_process_changes_no_contents(daemon: Daemon, running: Program) -> None:
    """The child also shares its parent's pages in swap. When it has ended, the kernel can page out
    the pages that it shared."""
    before = running.tell("sum")
    attach(daemon, running)
    wait_within_budget(daemon, running)
    running.tell("fork")
    assert running.tell("sum") == before
    (child,) = children(running.process.pid)
    os.kill(child, 9)
    wait_within_budget(daemon, running)
    assert running.tell("sum") == before


@pytest.fixture
def huge_page() -> Iterator[None]:
    """A huge page of 2 MiB that the test can use."""
    file = Path("/proc/sys/vm/nr_hugepages")
    before = int(file.read_text())
    file.write_text(str(before + 1))
    if int(file.read_text()) <= before:
        pytest.skip("the kernel has no free huge page")
    yield
    file.write_text(str(before))


def test_huge_pages_stay(daemon: Daemon, running: Program, huge_page: None) -> None:
    before = running.tell("sum")
    assert running.tell("huge") == "done"
    attach(daemon, running)
    wait_within_budget(daemon, running)
    assert session(daemon, running)["swap"]["skipped_bytes"] == {"huge": 2 * MIB}
    assert running.tell("sum") == before


def test_a_process_with_60000_mappings(daemon: Daemon, program: Path) -> None:
    mappings = 60_000
    many = Program(program, mappings * PAGE_BYTES // MIB + 1, 1)
    try:
        assert many.tell("split 1") == "done"
        assert len(Path(f"/proc/{many.pid}/maps").read_text().splitlines()) > mappings * 0.99
        before = many.tell("sum")
        attach(daemon, many, f"{mappings * PAGE_BYTES // 2}")
        wait_within_budget(daemon, many)
        assert many.tell("sum") == before
    finally:
        many.close()


def test_a_process_with_30000_locked_mappings(daemon: Daemon, program: Path) -> None:
    """Every second page is locked, so each page, locked or not, is a mapping of its own."""
    mappings = 60_000
    many = Program(program, mappings * PAGE_BYTES // MIB + 1, 1)
    try:
        assert many.tell("pin 1") == "done"
        before = many.tell("sum")
        attach(daemon, many, f"{mappings * PAGE_BYTES * 3 // 4}")
        wait_within_budget(daemon, many)
        wait(lambda: session(daemon, many)["swap"]["scans"], "the process is not scanned")
        found = session(daemon, many)["swap"]
        assert found["skipped_bytes"]["locked"] == pytest.approx(
            mappings * PAGE_BYTES / 2, rel=0.02
        )
        assert found["scan_cpu_s"] < SCAN_CPU_S_MAX * found["scans"]
        assert many.tell("sum") == before
        assert daemon.ctl("detach", many.pid).returncode == 0
    finally:
        many.close()


def test_page_outs_end_before_swap_is_full(daemon: Daemon, program: Path) -> None:
    large = Program(program, SWAP_BYTES // MIB + 32, 1)
    try:
        before = large.tell("sum")
        attach(daemon, large, "100%")
        attach(daemon, large, "8MiB")
        wait(
            lambda: "swap is nearly full" in session(daemon, large)["reason"],
            "the reason does not say that swap is full",
        )
        assert session(daemon, large)["state"] == "managed"
        assert large.tell("sum") == before
    finally:
        large.close()


def test_many_sessions_at_once(daemon: Daemon, program: Path) -> None:
    """Each program's budget is half of its size. All programs together are smaller than swap."""
    programs = [Program(program, 4, 1) for _ in range(50)]
    try:
        before = [one.tell("sum") for one in programs]
        for one in programs:
            request(daemon.control, "attach", pid=one.process.pid, fast="2MiB")
        for one in programs:
            wait_within_budget(daemon, one)
        assert [one.tell("sum") for one in programs] == before
    finally:
        for one in programs:
            one.close()


def test_commands_that_attach_one_process_at_once(daemon: Daemon, running: Program) -> None:
    """One command begins the session. The others change its budget, or are told to try again."""

    def refusal(_: int) -> str:
        try:
            request(daemon.control, "attach", PATIENCE_S, pid=running.process.pid, fast="32MiB")
        except SentinelError as error:
            return error.message
        return ""

    with ThreadPoolExecutor(8) as pool:
        refusals = set(pool.map(refusal, range(8)))
    busy = f"process {running.pid} is being attached by another command"
    assert "" in refusals
    assert refusals <= {"", busy}
    sessions = request(daemon.control, "status", PATIENCE_S)["sessions"]
    assert [one["pid"] for one in sessions].count(running.process.pid) == 1


def test_the_sum_of_budgets_is_limited(daemon: Daemon, running: Program, program: Path) -> None:
    memory_bytes = PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")
    most, rest = str(memory_bytes * 6 // 10), str(memory_bytes * 3 // 10)
    other = Program(program)
    try:
        attach(daemon, running, most)
        line = refused(daemon.ctl("attach", other.pid, "--fast", most), "budget-too-large")
        assert "that are left of the fast tier's" in line
        attach(daemon, other, rest)
        line = refused(daemon.ctl("attach", other.pid, "--fast", most), "budget-too-large")
        assert "other sessions have budgets of" in line
        # The refused command has left the session and its budget as they were.
        assert session(daemon, other)["budget_bytes"] == int(rest)
        running.close()
        wait(lambda: daemon.session(running.process.pid) is None, "the session does not end")
        attach(daemon, other, most)
        line = refused(daemon.ctl("attach", other.pid, "--weight", "2"), "wrong-state")
        assert "has a budget of its own" in line
    finally:
        other.close()


def test_a_process_is_managed_by_one_daemon(
    daemon: Daemon, running: Program, tmp_path: Path
) -> None:
    attach(daemon, running)
    other = Daemon(tmp_path, "--tiers", "swap")
    try:
        line = refused(other.ctl("attach", running.pid), "busy")
        assert "managed by another session or another daemon" in line
    finally:
        other.stop()


def test_a_killed_daemon_leaves_its_processes_free(
    daemon: Daemon, running: Program, tmp_path: Path
) -> None:
    before = running.tell("sum")
    other = Daemon(tmp_path, "--tiers", "swap")
    try:
        attach(other, running)
        wait_within_budget(other, running)
    finally:
        other.process.kill()
        other.process.communicate()
    attach(daemon, running)
    wait_within_budget(daemon, running)
    assert running.tell("sum") == before


def test_daemons_that_cannot_detect_each_other_keep_the_smaller_budget(
    daemon: Daemon, running: Program, tmp_path: Path
) -> None:
    """The second daemon has a mount of /proc of its own, like a daemon in a container."""
    script = 'mount -t proc proc /proc && exec "$@"'
    wrapper = ("unshare", "--mount", "sh", "-c", script, "sh")
    if subprocess.run([*wrapper, "true"], capture_output=True).returncode:
        pytest.skip("no proc file system can be mounted here")
    before = running.tell("sum")
    other = Daemon(tmp_path, "--tiers", "swap", wrapper=wrapper)
    try:
        attach(daemon, running, str(2 * BUDGET_BYTES))
        attach(other, running)
        wait_within_budget(daemon, running)
        wait_within_budget(other, running)
        assert session(daemon, running)["state"] == "managed"
        assert running.tell("sum") == before
    finally:
        other.stop()


def test_a_budget_for_which_swap_is_too_small_is_refused(daemon: Daemon, program: Path) -> None:
    large = Program(program, SWAP_BYTES // MIB + 32, 1)
    try:
        line = refused(daemon.ctl("attach", large.pid, "--fast", "8MiB"), "budget-too-large")
        assert "are free in swap" in line
    finally:
        large.close()


def test_bad_targets_are_refused(daemon: Daemon) -> None:
    missing = str(int(Path("/proc/sys/kernel/pid_max").read_text()))
    refused(daemon.ctl("attach", missing), "no-such-process")
    assert "kernel thread" in refused(daemon.ctl("attach", "2"), "not-permitted")
    line = refused(daemon.ctl("attach", str(daemon.process.pid)), "not-permitted")
    assert "itself" in line
    line = refused(daemon.ctl("attach", str(os.getpid()), "--policy", "auto"), "not-a-shim-process")
    assert "--policy temperature" in line
    too_much = str(4 * PAGE_BYTES * os.sysconf("SC_PHYS_PAGES"))
    refused(daemon.ctl("attach", str(os.getpid()), "--fast", too_much), "budget-too-large")


def test_other_tiers_refuse_the_policy(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "--tiers", "emulated:cxl")
    try:
        attach = ("attach", str(os.getpid()), "--policy", "temperature")
        assert "--tiers swap" in refused(daemon.ctl(*attach), "wrong-state")
    finally:
        daemon.stop()
