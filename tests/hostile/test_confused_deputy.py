# SPDX-License-Identifier: Apache-2.0
"""Attack: a connection that seems to belong to another process.

The kernel sets SO_PEERCRED at connect() and never updates it. Before the hello is sent, the
process that connected can execute a setuid program. It can also exit, and another process can then
get its pid.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentineld.base.errors import SentinelError
from sentineld.control.client import request
from tests.hostile.attack import Attack, ManagedTraining
from tests.hostile.attacker import USER, Say
from tests.hostile.daemon import Daemon
from tests.hostile.shim_client import Segment, ShimClient

HELPER = "helper"
SOURCE = "#include <unistd.h>\nint main(void) { alarm(600); for (;;) pause(); }\n"
VERB_S = 60.0
REUSE_TRIES = 200


@pytest.fixture
def helper(daemon: Daemon) -> Path:
    """A setuid-root program that does nothing, in a folder that every user may enter."""
    flags = os.statvfs(daemon.folder).f_flag
    if flags & os.ST_NOSUID:
        pytest.skip(f"needs {daemon.folder} on a file system without nosuid")
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    path = daemon.folder / HELPER
    subprocess.run(["cc", "-x", "c", "-o", path, "-"], input=SOURCE.encode(), check=True)
    os.chown(path, 0, 0)
    path.chmod(0o4755)
    return path


def child_with_the_socket(
    say: Say, path: str, program: str, before: bool, act: Callable[..., None], *arguments: Any
) -> None:
    """Connect, pass the socket to a child and execute a setuid program; the child calls act().

    before: whether the process itself sends the hello before it executes the program.
    """
    client, segment = ShimClient(Path(path)), Segment()
    if before:
        os.close(client.register(segment))
        answer = client.answer()
        assert answer is not None, "the connection was closed"
        assert answer["type"] == "welcome", answer
    parent = os.getpid()
    child = os.fork()
    if child:
        os.execv(program, [program])
    deadline_s = time.monotonic() + 240
    while f"Uid:\t{USER}\t0\t0\t0" not in Path(f"/proc/{parent}/status").read_text():
        assert time.monotonic() < deadline_s, "the program does not run as root"
        time.sleep(0.005)
    try:
        act(say, client, segment, parent, *arguments)
    finally:
        # The program runs as root now, so this process cannot kill it. The test kills it later.
        client.close()


def say_hello(say: Say, client: ShimClient, segment: Segment, pid: int) -> None:
    """Send the hello on behalf of the process that connected; report the answer."""
    with contextlib.suppress(OSError):
        os.close(client.register(segment))
    answer = client.answer()
    say(str(answer["type"]) if answer else "closed")


def use_verbs(say: Say, client: ShimClient, segment: Segment, pid: int, control: str) -> None:
    """Send verbs for the session of the process that now runs a setuid program; report the
    answers."""
    answers = {}
    for verb, arguments in (
        ("attach", {"fast": "20%", "policy": "static"}),
        ("record", {"steps": 1}),
        ("meter", {"steps": 1}),
    ):
        try:
            answers[verb] = str(request(Path(control), verb, VERB_S, pid=pid, **arguments))
        except SentinelError as error:
            answers[verb] = error.code
    say(answers)


def test_a_setuid_process_is_not_registered_by_its_child(daemon: Daemon, helper: Path) -> None:
    attack = Attack("hello for a setuid process", daemon, None)
    try:
        arguments = str(daemon.shims), str(helper), False, say_hello
        attacker = attack.start(child_with_the_socket, *arguments)
        assert attacker.heard() in ("refused", "closed")
        assert daemon.session(attacker.pid) is None
        attack.check()
    finally:
        attack.close()


def test_a_session_ends_when_its_process_executes_a_setuid_program(
    daemon: Daemon, helper: Path
) -> None:
    attack = Attack("attach of a setuid process", daemon, None)
    try:
        arguments = str(daemon.shims), str(helper), True, use_verbs, str(daemon.control)
        attacker = attack.start(child_with_the_socket, *arguments)
        answers = attacker.heard()
        refusals = {"not-permitted", "not-a-shim-process", "no-such-process"}
        assert answers["attach"] in refusals, answers
        assert answers["record"] in refusals, answers
        session = daemon.session(attacker.pid)
        assert session is None or session["state"] == "registered", session
        attack.check()
    finally:
        attack.close()


def leave_the_socket(say: Say, path: str) -> None:
    """Let a child connect and exit. Wait for SIGUSR1, which the test sends once another process
    has the child's pid. Then send the hello on the child's connection."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        client = ShimClient(Path(path))
        socket.send_fds(theirs, [b"x"], [client.socket.fileno()])
        os._exit(0)
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    os.waitpid(child, 0)
    say(child)
    signal.sigwait({signal.SIGUSR1})
    client = ShimClient.adopt(socket.socket(fileno=fds[0]))
    say_hello(say, client, Segment(), child)


def with_pid(pid: int) -> subprocess.Popen[bytes] | None:
    """Start a process with this pid; returns None if another process took the pid in each try."""
    last = Path("/proc/sys/kernel/ns_last_pid")
    for _ in range(REUSE_TRIES):
        last.write_text(str(pid - 1))
        process = subprocess.Popen(["sleep", "600"])
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    return None


def test_a_reused_pid_is_not_registered(daemon: Daemon) -> None:
    if not Path("/proc/sys/kernel/ns_last_pid").exists():
        pytest.skip("needs /proc/sys/kernel/ns_last_pid")
    attack = Attack("hello for a reused pid", daemon, None)
    # The forked attacker inherits this mask, so SIGUSR1 stays pending there until sigwait().
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    victim = None
    try:
        attacker = attack.start(leave_the_socket, str(daemon.shims))
        pid = attacker.heard()
        victim = with_pid(pid)
        if victim is None:
            pytest.skip(f"pid {pid} was taken by another process of this machine")
        attacker.signal(signal.SIGUSR1)
        assert attacker.heard() in ("refused", "closed")
        assert daemon.session(pid) is None
        attack.check()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        attack.close()
        if victim is not None:
            victim.kill()
            victim.wait()


def test_another_user_may_not_use_a_session(
    attack: Attack, managed_training: ManagedTraining
) -> None:
    """The managed training belongs to root: the attacker can neither see it nor act on it."""
    attacker = attack.start(use_all, str(attack.daemon.control), managed_training.pid)
    answers = attacker.heard()
    assert answers.pop("status") == []
    assert set(answers.values()) == {"not-permitted"}, answers
    attack.check()


def use_all(say: Say, control: str, pid: int) -> None:
    answers: dict[str, Any] = {}
    for verb in ("attach", "detach", "meter", "record", "tensors", "plan"):
        try:
            answers[verb] = str(request(Path(control), verb, VERB_S, pid=pid, steps=1))
        except SentinelError as error:
            answers[verb] = error.code
    answers["status"] = request(Path(control), "status", VERB_S)["sessions"]
    say(answers)
