# SPDX-License-Identifier: Apache-2.0
"""Policy `temperature` with groups as targets: process trees and cgroups."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sentineld.base.errors import SentinelError
from sentineld.control.client import request
from sentineld.heat.target import PROCESSES_MAX
from sentineld.host.memory_limit import joining
from sentineld.observe.pidfd import children
from tests.cgroups import cgroup, join, path_in_hierarchy, remove
from tests.hostile.attacker import USER, Attacker, Say
from tests.idle_process import WELCOMED
from tests.integration.hot_cold import MIB, Program, build, daemon_with_swap, wait
from tests.integration.test_daemon import PATIENCE_S, Daemon
from tests.sentinelctl import refused
from tests.unit.block_process import BLOCK_BYTES, block_process

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="swap can be enabled by root only"),
    pytest.mark.alone,
]

ROOT = Path(__file__).parents[2]
SIZE_MIB, HOT_MIB = 32, 16
BUDGET_BYTES = 32 * MIB


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that is built from hot_cold.c."""
    return build(tmp_path_factory.mktemp("hot_cold"))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon_with_swap("zram", tmp_path_factory.mktemp("daemon")) as started:
        yield started


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A new cgroup; v2 if possible. A test marked EACH_VERSION runs once with a cgroup of v1
    and once with one of v2."""
    with cgroup(getattr(request, "param", "any")) as folder:
        yield folder


EACH_VERSION = pytest.mark.parametrize("group", ["v1", "v2"], indirect=True)
"""For tests of permissions. Other tests use one version, because they take long."""


@contextmanager
def programs(path: Path, folder: Path, count: int) -> Iterator[list[Program]]:
    """Programs in a cgroup. All their pages are cold until a test sets their hot sets."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            one = Program(path, SIZE_MIB, HOT_MIB, joining(folder))
            stack.callback(one.close)
            one.tell(f"hot {SIZE_MIB}")
            found.append(one)
        yield found


def attach(daemon: Daemon, *target: str, fast: str = str(BUDGET_BYTES)) -> dict[str, Any]:
    done = daemon.ctl("attach", *target, "--fast", fast, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["session"]
    return found


def groups(daemon: Daemon) -> list[dict[str, Any]]:
    """The sessions of groups."""
    sessions = request(daemon.control, "status", PATIENCE_S)["sessions"]
    return [one for one in sessions if one["group"]]


def only(daemon: Daemon) -> dict[str, Any]:
    (found,) = groups(daemon)
    return found


def pids(running: Sequence[Program]) -> list[int]:
    return sorted(one.process.pid for one in running)


def wait_within_budget(daemon: Daemon, running: Sequence[Program]) -> None:
    def within() -> bool:
        found = only(daemon)
        resident_bytes = sum(one.resident_bytes() for one in running)
        return found["state"] == "managed" and resident_bytes <= found["budget_bytes"]

    wait(within, "the resident bytes of the group exceed the budget")


def wait_for_members(daemon: Daemon, expected: list[int]) -> None:
    wait(lambda: sorted(only(daemon)["processes"]) == expected, "the members are others")


def wait_for_scans(daemon: Daemon) -> None:
    """Wait until two more scans have ended. The second of them began after this call."""
    before = only(daemon)["swap"]["scans"]
    wait(lambda: only(daemon)["swap"]["scans"] >= before + 2, "the processes are not scanned")


@EACH_VERSION
def test_residency_follows_heat_in_a_cgroup(daemon: Daemon, program: Path, group: Path) -> None:
    with programs(program, group, 3) as running:
        hot, cold, other = running
        before = [one.tell("sum") for one in running]
        hot.tell("hot 0")
        found = attach(daemon, "--cgroup", str(group))
        assert found["policy"] == "temperature"
        assert found["group"] == f"cgroup {group}"
        assert found["peak_bytes"] == pytest.approx(3 * SIZE_MIB * MIB, rel=0.1)
        wait_within_budget(daemon, running)
        wait(lambda: hot.resident_share(0, HOT_MIB) > 0.95, "hot pages are not in memory")
        # The two cold processes together have only the memory that the hot pages leave: the budget
        # is not divided equally among the three processes.
        cold_bytes = cold.resident_bytes() + other.resident_bytes()
        assert cold_bytes < BUDGET_BYTES - HOT_MIB * MIB + MIB
        # The checksums read all pages, so all pages return to memory.
        assert [one.tell("sum") for one in running] == before
        wait_within_budget(daemon, running)
        # Another process becomes hot. Its pages displace those of the first process.
        hot.tell(f"hot {SIZE_MIB}")
        cold.tell("hot 0")
        wait(
            lambda: (
                cold.resident_share(0, HOT_MIB) > 0.95
                and sum(one.resident_bytes() for one in running) <= BUDGET_BYTES
            ),
            "pages of the new hot set are not in memory",
        )
        wait(
            lambda: hot.resident_bytes() < cold.resident_bytes(),
            "the process that was hot before has more memory than the hot one",
        )
        assert [one.tell("sum") for one in running] == before
        assert daemon.ctl("detach", "--cgroup", str(group)).returncode == 0
        assert groups(daemon) == []
        assert [one.tell("sum") for one in running] == before


def test_processes_join_and_leave_a_cgroup(daemon: Daemon, program: Path, group: Path) -> None:
    with programs(program, group, 1) as (first,), programs(program, group, 1) as (second,):
        before = first.tell("sum")
        outside = group.parent
        join(outside, second.process.pid)
        attach(daemon, "--cgroup", str(group), fast="24MiB")
        wait_for_members(daemon, [first.process.pid])
        # The second process enters the cgroup. Both processes then share one budget.
        join(group, second.process.pid)
        wait_for_members(daemon, pids([first, second]))
        wait_within_budget(daemon, [first, second])
        # A process that calls exec() stays a member, with another address space.
        first.execute_again()
        wait_for_members(daemon, pids([first, second]))
        wait_within_budget(daemon, [first, second])
        assert first.tell("sum") == before
        # The first process leaves the cgroup. Its pages are no longer paged out.
        join(outside, first.process.pid)
        wait_for_members(daemon, [second.process.pid])
        first.tell("sum")
        assert first.resident_share(0, SIZE_MIB) == 1
        second.close()
        wait(lambda: groups(daemon) == [], "the session of an empty cgroup does not end")


def test_processes_that_exit_at_once_do_not_disturb_the_others(
    daemon: Daemon, program: Path, group: Path
) -> None:
    """When a process comes or goes, the daemon's record of shared pages is briefly out of date."""
    loop = subprocess.Popen(
        [*joining(group), "/bin/sh", "-c", "while :; do /bin/true; done"], start_new_session=True
    )
    try:
        with programs(program, group, 2) as (hot, cold):
            before = [one.tell("sum") for one in (hot, cold)]
            hot.tell("hot 0")
            attach(daemon, "--cgroup", str(group))
            wait_within_budget(daemon, [hot, cold])
            wait(lambda: hot.resident_share(0, HOT_MIB) > 0.95, "hot pages are not in memory")
            assert [one.tell("sum") for one in (hot, cold)] == before
            assert only(daemon)["state"] == "managed"
    finally:
        os.killpg(loop.pid, 9)
        loop.wait()


def test_a_group_that_loses_a_child_cgroup_stays_managed(
    daemon: Daemon, program: Path, group: Path
) -> None:
    inner = group / "inner"
    inner.mkdir()
    with programs(program, group, 1) as (first,), programs(program, inner, 1) as (second,):
        before = first.tell("sum")
        attach(daemon, "--cgroup", str(group))
        wait_for_members(daemon, pids([first, second]))
        second.close()
        remove(inner)
        wait_for_members(daemon, pids([first]))
        wait_within_budget(daemon, [first])
        assert first.tell("sum") == before


def test_a_cpuset_whose_cpus_change(daemon: Daemon, program: Path) -> None:
    status = Path("/proc/self/status").read_text()
    with cgroup(controller="cpuset") as folder:
        for name in ("cpus", "mems"):
            allowed = re.search(rf"^{name}_allowed_list:\s*(\S+)$", status, re.M | re.I)
            assert allowed is not None
            (folder / f"cpuset.{name}").write_text(allowed[1])
        with programs(program, folder, 1) as running:
            before = running[0].tell("sum")
            attach(daemon, "--cgroup", str(folder), fast="16MiB")
            wait_within_budget(daemon, running)
            (folder / "cpuset.cpus").write_text(str(min(os.sched_getaffinity(0))))
            assert running[0].tell("sum") == before
            wait_within_budget(daemon, running)
            assert only(daemon)["processes"] == pids(running)


def test_the_session_ends_with_the_cgroup(daemon: Daemon, program: Path, group: Path) -> None:
    with programs(program, group, 1) as (running,):
        attach(daemon, "--cgroup", str(group))
        # The process survives, but the cgroup does not.
        join(group.parent, running.process.pid)
        remove(group)
        wait(lambda: groups(daemon) == [], "the session does not end")
        line = refused(daemon.ctl("detach", "--cgroup", str(group)), "no-such-process")
        assert "there is no cgroup" in line
        assert running.tell("sum")


def test_a_process_tree_has_one_budget(daemon: Daemon, program: Path) -> None:
    """The tree's root uses little memory. Its children start after the attach. One of the children
    outlives the root."""
    with block_process() as root:
        found = attach(daemon, str(root.pid), "--tree", fast="24MiB")
        assert found["pid"] == root.pid
        assert found["group"] == f"tree of process {root.pid}"
        root.run("import os, subprocess; read, write = os.pipe()")
        command = f"['{program}', '{SIZE_MIB}', '1'], stdin=read, stdout=2, pass_fds=[write]"
        for name in ("one", "other"):
            root.run(f"{name} = subprocess.Popen({command})")
        try:
            wait(lambda: len(only(daemon)["processes"]) == 3, "the children are not managed")

            def within() -> bool:
                answer = only(daemon)
                full = answer["peak_bytes"] > (2 * SIZE_MIB + 8) * MIB * 0.9
                return full and answer["charged_bytes"] <= answer["budget_bytes"]

            wait(within, "the tree exceeds its budget")
            root.run("one.kill(); one.wait()")
            wait(lambda: len(only(daemon)["processes"]) == 2, "a child does not leave")
            assert "2 processes; " in daemon.ctl("status").stdout
            assert attach(daemon, str(root.pid), "--tree", fast="50%")["fast"] == "50%"
            (orphan,) = (pid for pid in only(daemon)["processes"] if pid != root.pid)
            root.process.kill()
            root.process.wait()
            wait(lambda: only(daemon)["processes"] == [orphan], "the orphan is not managed")
            # The PID of the root still names the session.
            assert attach(daemon, str(root.pid), fast="16MiB")["budget_bytes"] == 16 * MIB
        finally:
            for pid in only(daemon)["processes"]:
                os.kill(pid, 9)
        wait(lambda: groups(daemon) == [], "the session of an empty tree does not end")


def test_pages_that_a_fork_shares_are_counted_once(daemon: Daemon) -> None:
    with block_process() as root:
        root.run("import os, signal")
        root.run("child = os.fork() or (libc.prctl(1, 9), signal.pause())")
        found = attach(daemon, str(root.pid), "--tree", fast="32MiB")
        assert len(found["processes"]) == 2
        assert BLOCK_BYTES < found["charged_bytes"] < 2 * BLOCK_BYTES + 8 * MIB
        alone = Path(f"/proc/{root.pid}/status").read_text().partition("RssAnon:")[2].split()[0]
        assert found["charged_bytes"] < 1.5 * (int(alone) << 10)


def test_shared_memory_makes_no_false_peak(daemon: Daemon, program: Path) -> None:
    """The budget is 75% of the peak, and must not grow because of a child. The first child runs in
    its parent's address space, as after vfork(). When it has ended, a second child shares its
    parent's pages, as after fork()."""
    root = Program(program, SIZE_MIB, 1)
    try:
        before = root.tell("sum")
        found = attach(daemon, root.pid, "--tree", fast="75%")
        budget_bytes = found["budget_bytes"]
        assert budget_bytes == pytest.approx(SIZE_MIB * MIB * 0.75, rel=0.1)
        wait_within_budget(daemon, [root])
        root.tell("clone")
        (child,) = children(root.process.pid)
        reason = f"process {child} has the same address space as its parent, process {root.pid}"
        wait(lambda: only(daemon)["swap"]["left_out_reason"] == reason, "the child is managed")
        line = refused(daemon.ctl("attach", str(child)), "wrong-state")
        assert f"give PID {root.pid}" in line
        wait_for_scans(daemon)
        assert only(daemon)["budget_bytes"] == pytest.approx(budget_bytes, rel=0.1)
        assert root.resident_bytes() > budget_bytes * 0.8
        os.kill(child, 9)
        root.tell("fork")
        wait(lambda: len(only(daemon)["processes"]) == 2, "the child is not managed")
        wait_for_scans(daemon)
        assert only(daemon)["budget_bytes"] == pytest.approx(budget_bytes, rel=0.1)
        # Compute the checksum last, because it can raise the peak, and thereby the budget: it reads
        # the parent's swapped pages into memory, and the child still has these pages in swap.
        assert root.tell("sum") == before
    finally:
        root.close()


def test_a_share_of_the_peak_grows_as_far_as_other_budgets_permit(
    daemon: Daemon, program: Path, group: Path
) -> None:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    single = Program(program, 1, 1)
    try:
        with programs(program, group, 1) as (first,), programs(program, group, 1) as (second,):
            join(group.parent, second.process.pid)
            attach(daemon, single.pid, fast=str(memory_bytes - (SIZE_MIB + 16) * MIB))
            budget_bytes = attach(daemon, "--cgroup", str(group), fast="100%")["budget_bytes"]
            join(group, second.process.pid)
            wait(
                lambda: only(daemon)["reason"].startswith("the budget cannot grow: "),
                "the reason does not say that the budget cannot grow",
            )
            assert "other sessions have budgets of" in only(daemon)["reason"]
            assert only(daemon)["budget_bytes"] == budget_bytes
            wait_within_budget(daemon, [first, second])
            # When the other session has ended, the budget can grow to the group's peak.
            single.close()
            wait(
                lambda: only(daemon)["budget_bytes"] > 2 * SIZE_MIB * MIB,
                "the budget does not grow",
            )
            wait(lambda: "cannot grow" not in only(daemon)["reason"], "the reason is outdated")
    finally:
        single.close()


def test_processes_of_another_daemon_are_left_out(
    daemon: Daemon, program: Path, group: Path, tmp_path: Path
) -> None:
    with programs(program, group, 2) as (first, second):
        other = Daemon(tmp_path, "--tiers", "swap")
        try:
            attach(other, first.pid)
            found = attach(daemon, "--cgroup", str(group))
            assert found["processes"] == [second.process.pid]
            reason = f"process {first.pid} is managed by another session or another daemon"
            assert found["swap"]["left_out_reason"] == reason
            line = refused(other.ctl("attach", "--cgroup", str(group)), "busy")
            assert "end that session, or stop that daemon" in line
        finally:
            other.stop()


def test_processes_of_other_sessions_are_left_out(
    daemon: Daemon, program: Path, group: Path
) -> None:
    with programs(program, group, 2) as (single, other):
        first, second = str(single.process.pid), str(other.process.pid)
        attach(daemon, first)
        found = attach(daemon, "--cgroup", str(group))
        assert found["processes"] == [other.process.pid]
        assert found["swap"]["left_out"] == 1
        text = daemon.ctl("status").stdout
        assert f"1 process, 1 left out (process {first} is managed by another session" in text
        # A process cannot be in two sessions.
        line = refused(daemon.ctl("attach", first, "--tree"), "wrong-state")
        assert "without its descendants" in line
        line = refused(daemon.ctl("attach", second), "busy")
        assert f"is managed as a part of cgroup {group}" in line
        assert f"sentinelctl detach --cgroup {group}" in line
        line = refused(daemon.ctl("attach", second, "--tree"), "busy")
        assert f"is managed as a part of cgroup {group}" in line
        line = refused(daemon.ctl("detach", second), "busy")
        assert f"sentinelctl detach --cgroup {group}" in line
        # The same cgroup, by another name.
        inner = path_in_hierarchy(group)
        assert inner != str(group)
        assert attach(daemon, "--cgroup", inner, fast="48MiB")["budget_bytes"] == 48 * MIB
        assert len(groups(daemon)) == 1
        # A process that was attached on its own joins the group when its session has ended.
        assert daemon.ctl("detach", first).returncode == 0
        wait_for_members(daemon, pids([single, other]))


def ask(say: Say, verb: str, arguments: dict[str, Any]) -> None:
    """Send a verb to the daemon whose socket is in the current folder. Report the answer, or the
    error's code and message."""
    try:
        say(request(Path("control.sock"), verb, PATIENCE_S, **arguments))
    except SentinelError as error:
        say([error.code, error.message])


def ask_as_user(daemon: Daemon, verb: str, **arguments: Any) -> Any:
    """The answer of ask(), which runs as a user other than root."""
    daemon.control.chmod(0o666)
    daemon.folder.chmod(0o711)
    with chdir(daemon.folder):  # the user may not enter the folders above it
        user = Attacker(ask, verb, arguments)
    try:
        return user.heard()
    finally:
        user.close()


@EACH_VERSION
def test_a_user_manages_only_processes_of_their_own(daemon: Daemon, group: Path) -> None:
    answer = partial(ask_as_user, daemon)
    with ExitStack() as stack:

        def sleeper(uid: int) -> int:
            process = subprocess.Popen(["/bin/sleep", "1000"], user=uid, group=uid, extra_groups=[])
            stack.callback(process.wait)
            stack.callback(process.kill)
            join(group, process.pid)
            return process.pid

        root = sleeper(0)
        code, message = answer("attach", cgroup=str(group))
        assert code == "not-permitted"
        assert f"process {root} belongs to another user" in message
        own = sleeper(USER)
        found = answer("attach", cgroup=str(group))
        assert found["processes"] == [own]
        assert found["swap"]["left_out"] == 1
        assert found["uid"] == USER
        # The user's session manages only this user's processes. Root may end it, and then attach
        # the cgroup with all of its processes.
        line = refused(daemon.ctl("attach", "--cgroup", str(group)), "busy")
        assert f"was attached by user {USER}" in line
        assert f"sentinelctl detach --cgroup {group}" in line
        assert daemon.ctl("detach", "--cgroup", str(group)).returncode == 0
        attach(daemon, "--cgroup", str(group))
        assert answer("status")["sessions"] == []
        for verb in ("attach", "detach"):
            assert answer(verb, cgroup=str(group))[0] == "not-permitted"
        assert answer("attach", pid=own, tree=True)[0] == "busy"


@EACH_VERSION
def test_a_setuid_program_leaves_a_users_group(daemon: Daemon, group: Path) -> None:
    daemon.folder.chmod(0o711)
    program = daemon.folder / "setuid-sleep"
    shutil.copy("/bin/sleep", program)
    program.chmod(0o4755)
    user: dict[str, Any] = {"user": USER, "group": USER, "extra_groups": []}
    script = f"read line; exec ./{program.name} 1000"
    with ExitStack() as stack:
        processes = []
        for command in (["/bin/sleep", "1000"], ["/bin/sh", "-c", script]):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=daemon.folder, **user)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            join(group, process.pid)
            processes.append(process)
        other, changing = processes
        found = ask_as_user(daemon, "attach", cgroup=str(group))
        assert sorted(found["processes"]) == sorted(one.pid for one in processes)
        assert changing.stdin is not None
        changing.stdin.write(b"\n")
        changing.stdin.flush()
        wait_for_members(daemon, [other.pid])
        wait(lambda: only(daemon)["swap"]["left_out"] == 1, "the program is not left out")
        assert f"process {changing.pid}" in only(daemon)["swap"]["left_out_reason"]
        assert ask_as_user(daemon, "attach", pid=changing.pid)[0] == "not-permitted"


def test_a_process_that_registers_by_the_shim_leaves_its_group(
    daemon: Daemon, program: Path, group: Path
) -> None:
    script = "input(); import tests.idle_process; tests.idle_process.main()"
    process = subprocess.Popen(
        [*joining(group), sys.executable, "-c", script, str(daemon.folder / "shim.sock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        with programs(program, group, 1) as (other,):
            attach(daemon, "--cgroup", str(group))
            wait_for_members(daemon, sorted([process.pid, other.process.pid]))
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == WELCOMED
            wait_for_members(daemon, [other.process.pid])
            assert only(daemon)["swap"]["left_out"] == 1
            line = refused(daemon.ctl("attach", str(process.pid), "--tree"), "wrong-state")
            assert "runs under the shim" in line
    finally:
        process.kill()
        process.communicate()


def test_metrics_name_the_group(daemon: Daemon, program: Path, group: Path) -> None:
    with programs(program, group, 2):
        attach(daemon, "--cgroup", str(group))
        url = f"http://127.0.0.1:{daemon.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            metrics = answer.read().decode()
        assert f'group="cgroup {group}"' in metrics
        assert re.search(r'^sentineld_processes{kind="managed",session="\S+"} 2.0$', metrics, re.M)
        assert str(group) in daemon.ctl("status").stdout


@contextmanager
def limited_group(limit_bytes: int) -> Iterator[Path]:
    """A new cgroup with a memory limit."""
    with cgroup(controller="memory") as folder:
        names = ("memory.max", "memory.limit_in_bytes")  # v2, v1
        limit = next(file for name in names if (file := folder / name).exists())
        limit.write_text(str(limit_bytes))
        yield folder


def test_a_cgroup_with_a_memory_limit_below_the_budget(daemon: Daemon, program: Path) -> None:
    """The kernel reclaims memory to keep the limit, and the session stays managed."""
    with limited_group(40 * MIB) as group, programs(program, group, 2) as running:
        before = [one.tell("sum") for one in running]
        running[0].tell("hot 0")
        attach(daemon, "--cgroup", str(group), fast="48MiB")
        wait(lambda: only(daemon)["state"] == "managed", "the cgroup is not managed")
        assert [one.tell("sum") for one in running] == before
        assert only(daemon)["state"] == "managed"


def test_bad_groups_are_refused(daemon: Daemon, group: Path) -> None:
    line = refused(daemon.ctl("attach", "--cgroup", f"{group}/missing"), "no-such-process")
    assert "there is no cgroup" in line
    line = refused(daemon.ctl("attach", "--cgroup", str(group)), "no-such-process")
    assert "has no processes" in line
    line = refused(daemon.ctl("detach", "--cgroup", str(group)), "wrong-state")
    assert "is not managed" in line
    assert "root" in refused(daemon.ctl("attach", "--cgroup", "/"), "not-permitted")
    refused(daemon.ctl("attach", "--cgroup", "relative"), "usage")
    assert "kernel thread" in refused(daemon.ctl("attach", "2", "--tree"), "not-permitted")
    line = refused(daemon.ctl("attach", str(daemon.process.pid), "--tree"), "not-permitted")
    assert "itself" in line
    for options in (("--cgroup", str(group)), (str(os.getpid()), "--tree")):
        line = refused(daemon.ctl("attach", *options, "--policy", "auto"), "usage")
        assert "--policy" in line
    assert groups(daemon) == []


def test_a_group_with_too_many_processes_is_refused(daemon: Daemon, group: Path) -> None:
    script = (
        "import os, signal\n"
        f"for _ in range({PROCESSES_MAX}):\n"
        "    if not os.fork():\n"
        "        signal.pause()\n"
        "print(flush=True)\n"
        "signal.pause()"
    )
    process = subprocess.Popen(
        [*joining(group), sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        for target in (("--cgroup", str(group)), (str(process.pid), "--tree")):
            line = refused(daemon.ctl("attach", *target), "wrong-state")
            assert f"more than {PROCESSES_MAX} processes" in line
    finally:
        os.killpg(process.pid, 9)
        process.communicate()


def test_budgets_are_checked_for_the_whole_group(
    daemon: Daemon, program: Path, group: Path
) -> None:
    too_much = str(4 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with programs(program, group, 1):
        command = ("attach", "--cgroup", str(group), "--fast", too_much)
        refused(daemon.ctl(*command), "budget-too-large")
        attach(daemon, "--cgroup", str(group))  # after the refusal, no session has the group


def test_other_tiers_refuse_groups(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "--tiers", "emulated:cxl")
    try:
        line = refused(daemon.ctl("attach", str(os.getpid()), "--tree"), "wrong-state")
        assert "--tiers swap" in line
    finally:
        daemon.stop()
