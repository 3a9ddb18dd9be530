# SPDX-License-Identifier: Apache-2.0
"""Slurm's prolog, epilog and task prolog, run with the environment that Slurm documents, against a
real daemon."""

from __future__ import annotations

import os
import re
import shutil
import socket as socketlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from shlex import join
from textwrap import dedent

import pytest

from tests.integration.shim.daemon_side import ROOT
from tests.integration.test_daemon import PATIENCE_S, Daemon
from tests.sentinelctl import SENTINELCTL
from tests.unit.cli.answering import answering

SCRIPTS = ROOT / "systemd/slurm"
HOW_TO = ROOT / "docs/how-to/slurm.md"
COMPAT = ROOT / "tests/integration/shim/compat.py"
JOB = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_UID": str(os.getuid()),
    "SLURM_JOB_USER": "alice",
    "SLURM_CLUSTER_NAME": "cluster",
    "SLURMD_NODENAME": "node7",
}


class Node:
    """A node of a cluster, with the scripts as `make install PREFIX=folder` installs them. Its
    sentinelctl is that of the working tree, and its systemctl only records how it was called."""

    def __init__(self, folder: Path, control: Path | None) -> None:
        """control: the socket of the node's daemon; None if no daemon runs."""
        self.folder = folder
        self._scripts = folder / "lib/sentineld/slurm"
        shutil.copytree(SCRIPTS, self._scripts, dirs_exist_ok=True)
        (folder / "bin").mkdir(exist_ok=True)
        self.called = folder / "systemctl.called"
        socket = control or folder / "none.sock"
        # Unlike the installed program, that of the working tree imports from the working directory.
        self._program("sentinelctl", f'cd /; exec {join(SENTINELCTL)} --socket {socket} "$@"')
        self._program("systemctl", f'echo "$@" >>{self.called}')

    def _program(self, name: str, line: str) -> None:
        program = self.folder / "bin" / name
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)

    def run(
        self, script: str, cwd: Path = Path("/"), **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a script with the environment variables of JOB and `more`."""
        # sentinelctl of the working tree needs PYTHONPATH.
        kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        return subprocess.run(
            [self._scripts / script],
            env={**JOB, **kept, **more},
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",  # the name of a cgroup need not be UTF-8
            timeout=PATIENCE_S,
        )


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    started = Daemon(tmp_path_factory.mktemp("daemon"), "--tiers", "emulated:cxl")
    yield started
    started.stop()


@pytest.fixture
def node(daemon: Daemon, tmp_path: Path) -> Node:
    return Node(tmp_path, daemon.control)


@pytest.fixture
def bare(tmp_path: Path) -> Node:
    """A node on which no daemon runs."""
    return Node(tmp_path, None)


@pytest.mark.parametrize("constraints", ["sentineld", "gpu&sentineld", "[sentineld*2&gpu*4]"])
def test_a_job_that_demands_sentineld_starts_only_beside_a_daemon(
    node: Node, constraints: str
) -> None:
    assert node.run("prolog", SLURM_JOB_CONSTRAINTS=constraints).returncode == 0
    assert not node.called.exists()
    without = Node(node.folder, None).run("prolog", SLURM_JOB_CONSTRAINTS=constraints)
    assert without.returncode == 1
    assert "job 4711 on node7: error: " in without.stderr
    assert node.called.read_text() == "start sentineld\n"


@pytest.mark.parametrize("constraints", [{}, {"SLURM_JOB_CONSTRAINTS": "sentineld2&gpu"}])
def test_other_jobs_start_in_any_case(bare: Node, constraints: dict[str, str]) -> None:
    done = bare.run("prolog", **constraints)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not bare.called.exists()


def test_a_node_without_sentineld_has_scripts_that_do_nothing(tmp_path: Path) -> None:
    """Slurm drains a node on which a prolog or an epilog of slurm.conf is missing."""
    text = HOW_TO.read_text()
    lines = dedent(text[text.index("   for name in prolog") : text.index("   done\n")]) + "done\n"
    folder, installed = tmp_path / "etc", tmp_path / "lib/sentineld/slurm"
    folder.mkdir()
    lines = lines.replace("/etc/slurm", str(folder))
    lines = lines.replace("/usr/lib/sentineld/slurm", str(installed))
    subprocess.run(["sh", "-ec", lines], check=True)
    named = re.findall(r"(?:Prolog|Epilog|TaskProlog)=/etc/slurm/([\w-]+)", text)
    assert len(named) == 3
    demands = {**JOB, "SLURM_JOB_CONSTRAINTS": "sentineld"}
    for name in named:
        assert subprocess.run([folder / name], env=demands).returncode == 0
    # Now sentineld is installed, but does not answer.
    node = Node(tmp_path, None)
    assert subprocess.run([folder / "sentineld-prolog"], env=demands).returncode == 1
    assert node.called.read_text() == "start sentineld\n"


def test_a_node_with_one_tier_is_refused(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    try:
        tiers = daemon.ctl("status").stdout.splitlines()[0]
        done = Node(tmp_path, daemon.control).run("prolog", SLURM_JOB_CONSTRAINTS="sentineld")
    finally:
        daemon.stop()
    if "tier 1: " in tiers:
        pytest.skip("this machine has two tiers")
    assert done.returncode == 1
    assert "no second tier" in done.stderr


def test_a_task_loads_the_shim_if_the_daemon_runs(node: Node, daemon: Daemon) -> None:
    socket = str(daemon.folder / "shim.sock")

    def prints(**more: str) -> str:
        done = node.run("task-prolog", SENTINELD_SHIM_SOCKET=socket, **more)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert prints() == "export SENTINELD_SHIM=1\n"
    assert prints(SENTINELD_SHIM="0") == ""
    dead = node.folder / "dead.sock"  # a stopped daemon leaves its socket behind
    with socketlib.socket(socketlib.AF_UNIX) as listening:
        listening.bind(str(dead))
        listening.listen()
    for path in (dead, node.folder / "none.sock"):
        socket = str(path)
        assert prints() == ""
        assert prints(SENTINELD_SHIM="1").startswith("print sentineld does not run on node7")


def test_an_epilog_starts_a_daemon_that_does_not_answer(bare: Node) -> None:
    assert bare.run("epilog").returncode == 0
    assert bare.called.read_text() == "start sentineld\n"


def test_an_epilog_imports_nothing_from_its_working_directory(node: Node, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('json.py is imported')\n")
    done = node.run("epilog", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_epilog_detaches_what_the_job_has_left_behind(
    node: Node, daemon: Daemon, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    stop = tmp_path / "stop"
    socket = str(daemon.folder / "shim.sock")
    # The job script may set a name in SENTINELD_JOB that differs from SLURM_JOB_ID.
    variables = {"SENTINELD_SHIM_SOCKET": socket, "SENTINELD_JOB": "mine", **JOB}
    process = subprocess.Popen(
        [sys.executable, "-m", "sentineld.shim", str(COMPAT), "accumulate", str(stop)],
        env={**os.environ, **variables},
        stdout=subprocess.DEVNULL,
    )

    def state() -> str:
        found = daemon.session(process.pid)
        return found["state"] if found else ""

    def wait(wanted: bool) -> None:
        """Wait until the process is attached or, if not `wanted`, until it is not attached."""
        deadline_s = time.monotonic() + PATIENCE_S
        while (state() not in ("", "registered")) != wanted:
            assert process.poll() is None
            assert time.monotonic() < deadline_s, state()
            time.sleep(0.1)

    try:
        while not state():
            assert process.poll() is None
            time.sleep(0.1)
        assert daemon.ctl("attach", str(process.pid), "--fast", "50%").returncode == 0
        wait(True)
        for other in ({"SLURM_JOB_ID": "471"}, {"SLURM_JOB_UID": str(os.getuid() + 1)}):
            done = node.run("epilog", **other)
            assert (done.returncode, done.stderr) == (0, "")
        assert state() != "registered"
        done = node.run("epilog")
        assert done.returncode == 0
        assert f"process {process.pid} outlives the job: detached" in done.stderr
        wait(False)
    finally:
        stop.touch()
        assert process.wait(PATIENCE_S) == 0


def test_an_epilog_detaches_a_cgroup_by_its_exact_name(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "1000"], env={**os.environ, **JOB})
    common = {"pid": process.pid, "uid": os.getuid(), "state": "managed", "job": None}
    folders = ["/sys/fs/cgroup/plain", "/sys/fs/cgroup/two  words *\x1b\udcff"]
    sessions = [{**common, "cgroup": folder} for folder in ["", *folders]]
    answers = {"status": lambda _: {"sessions": sessions}, "detach": lambda _: common}
    try:
        with answering(tmp_path, **answers) as ctl:
            done = Node(tmp_path, ctl.socket).run("epilog")
    finally:
        process.kill()
        process.wait()
    assert done.returncode == 0
    detached = [arguments for verb, arguments in ctl.asked if verb == "detach"]
    assert detached == [{"pid": process.pid}, *({"cgroup": folder} for folder in folders)]
    first, second, third = done.stderr.splitlines()
    assert first.endswith(f": process {process.pid} outlives the job: detached")
    assert second.endswith(": cgroup /sys/fs/cgroup/plain outlives the job: detached")
    assert "\x1b" not in third
