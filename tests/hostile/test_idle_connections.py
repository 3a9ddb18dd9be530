# SPDX-License-Identifier: Apache-2.0
"""Attack: connections that cost the daemon more than they cost the client."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.hostile.attack import Attack, attack_alone
from tests.hostile.attacker import OTHER_USER, Say, die_with_parent, lasts
from tests.hostile.daemon import Daemon
from tests.hostile.shim_client import Segment, ShimClient, registered
from tests.process_figures import cpu_seconds, waits
from tests.unit.waiting import wait

IDLE = 1100
"""More connections than the default limit of a service's open descriptors (RLIMIT_NOFILE)."""
PROCESSES = 150
"""Number of processes that are registered, or attached, and do nothing."""
CPU_SHARE_MAX = 0.5
WAKE_UPS_PER_S_MAX = {"registered": 2.0, "attached": 10.0}
"""Limit for the daemon's wake-ups per second and session while the sessions' processes do nothing.
All wake-ups of the daemon are counted."""
WINDOWS = 3  # number of measurements; the lowest result is compared with the limit
CLIENTS_S = 3600.0
"""Time within which all clients must be answered. The limit only has to end a test that hangs. It
is long, because attackers have the lowest priority: hundreds of forks can take minutes while the
tests in two guests use the CPUs."""
HELLO_DEADLINE_S = 60.0
"""The daemon must close silent connections within this time; its own deadline is much shorter."""


def idle(say: Say, path: str, count: int) -> None:
    """Open up to `count` connections and send nothing; report when this is done."""
    held: list[socket.socket] = []
    for _ in range(count):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        while True:
            try:
                client.connect(path)
            except BlockingIOError:  # the backlog is full
                time.sleep(0.01)
                if len(held) > count // 2:
                    break
                continue
            held.append(client)
            break
    say(len(held))
    signal.pause()


def with_descriptors(say: Say, path: str, count: int) -> None:
    """Begin a hello with 8 descriptors on each of many connections, but never complete it."""
    held = []
    event = os.eventfd(0)
    for _ in range(count):
        with contextlib.suppress(OSError):
            client = ShimClient(Path(path))
            client.raw(b"\x40\x00\x00\x00{", [event] * 8)
            held.append(client)
    say(len(held))
    signal.pause()


def flood_with_descriptors(say: Say, path: str, duration_s: float) -> None:
    """Connect again and again, and send an invalid hello with 8 descriptors on each connection.
    Report the number of these hellos."""
    event = os.eventfd(0)
    held: list[ShimClient] = []
    sent, end_s = 0, time.monotonic() + duration_s
    while lasts(end_s, sent):
        with contextlib.suppress(OSError):
            client = ShimClient(Path(path))
            client.raw(b"\x02\x00\x00\x00[]", [event] * 8)
            sent += 1
            held.append(client)
        if len(held) >= 200:
            held.pop(0).close()
    say(sent)


def register(say: Say, path: str) -> None:
    client, _ = registered(Path(path))
    say("registered")
    client.closed(600)


def test_idle_connections_neither_spin_nor_lock_out_others() -> None:
    with attack_alone("1,100 idle connections", descriptors=1024) as attack:
        daemon = attack.daemon
        attack.start(idle, str(daemon.shims), IDLE).heard()
        attack.hold(1)
        begin_s, cpu_begin_s = time.monotonic(), cpu_seconds(daemon.process.pid)
        attack.hold(4)
        share = (cpu_seconds(daemon.process.pid) - cpu_begin_s) / (time.monotonic() - begin_s)
        print(f"the daemon uses {share:.0%} of a CPU")
        # A user other than the attacker can register during the attack.
        later = attack.start(register, str(daemon.shims), user=OTHER_USER)
        assert later.heard() == "registered"
        attack.check()
        assert share < CPU_SHARE_MAX, f"the daemon uses {share:.0%} of a CPU"


def test_idle_connections_beside_a_managed_training(attack: Attack) -> None:
    attack.start(idle, str(attack.daemon.shims), IDLE).heard()
    attack.hold(3)
    attack.check()


def test_connections_with_descriptors_do_not_exhaust_them() -> None:
    with attack_alone("200 connections with 8 descriptors each", descriptors=1024) as attack:
        assert attack.start(with_descriptors, str(attack.daemon.shims), 200).heard() > 0
        attack.hold(4)
        later = attack.start(register, str(attack.daemon.shims), user=OTHER_USER)
        assert later.heard() == "registered"
        attack.check()


def test_a_flood_of_connections_with_descriptors(attack: Attack) -> None:
    path = str(attack.daemon.shims)
    attacker = attack.start(flood_with_descriptors, path, attack.scaled_s(5.0))
    assert attacker.heard() > 0
    attack.check()


@pytest.mark.parametrize("count", [120, pytest.param(1000, marks=pytest.mark.long)])
def test_many_clients_of_one_user(attack: Attack, count: int) -> None:
    """Each client is a separate process with a valid hello; the daemon may refuse some clients."""
    attacker = attack.start(many_processes, str(attack.daemon.shims), count, count)
    answers = attacker.heard(CLIENTS_S)
    print(answers)
    assert answers.get("welcome", 0) > 0
    attack.hold(2)
    attack.check()


@pytest.mark.parametrize("state", ["registered", "attached"])
def test_processes_that_do_nothing_cost_little(state: str) -> None:
    options = {"descriptors": 20_000, "auto_attach": state == "attached"}
    with attack_alone(f"{PROCESSES} processes, {state}", **options) as attack:
        attacker = attack.start(many_processes, str(attack.daemon.shims), PROCESSES, 4)
        assert attacker.heard(CLIENTS_S) == {"welcome": PROCESSES}
        # With auto_attach, the daemon attaches a session shortly after it has welcomed the process.
        wait(lambda: {one["state"] for one in attack.daemon.status()["sessions"]} == {state})
        pid = attack.daemon.process.pid
        rates = [wake_ups_per_s(attack, pid) for _ in range(WINDOWS)]
        attack.check()
        # On a busy machine, the daemon may still handle the processes' first messages during the
        # first measurements.
        assert min(rates) < WAKE_UPS_PER_S_MAX[state]


def wake_ups_per_s(attack: Attack, pid: int) -> float:
    """The daemon's wake-ups per second, divided by the number of processes."""
    begin_s, begin, begin_cpu_s = time.monotonic(), waits(pid), cpu_seconds(pid)
    attack.hold(2)
    held_s = time.monotonic() - begin_s
    rate = (waits(pid) - begin) / held_s / PROCESSES
    share = (cpu_seconds(pid) - begin_cpu_s) / held_s
    print(f"the daemon wakes up {rate:.1f} times a second for each process: {share:.2f} CPUs")
    return rate


def many_processes(say: Say, path: str, count: int, at_once: int) -> None:
    """Fork `count` clients that register and stay; reports how many clients got each answer.

    at_once: the number of clients that may wait for an answer at a time.
    """
    reading, writing = os.pipe()
    parent = os.getpid()
    text = b""
    for number in range(count):
        while number - text.count(b"\n") >= at_once:
            text += os.read(reading, 1 << 16)
        if os.fork() == 0:
            die_with_parent(parent)
            answer = b"closed"
            with contextlib.suppress(OSError, AssertionError):
                answer = _try_to_register(path)
            os.write(writing, answer + b"\n")
            signal.pause()
    while text.count(b"\n") < count:
        text += os.read(reading, 1 << 16)
    answers: dict[str, int] = {}
    for line in text.decode().split():
        answers[line] = answers.get(line, 0) + 1
    say(answers)
    signal.pause()


_KEPT: list[object] = []


def _try_to_register(path: str) -> bytes:
    client, segment = ShimClient(Path(path)), Segment()
    _KEPT.extend((client, segment))
    os.close(client.register(segment))
    answer = client.answer(CLIENTS_S / 2)
    return str(answer["type"] if answer else "closed").encode()


def test_idle_connections_of_the_control_socket(attack: Attack) -> None:
    """The attacker is in the group of the control socket, so it has permission to connect."""
    attack.start(idle, str(attack.daemon.control), 300).heard()
    attack.hold(3)
    attack.check()


def test_idle_connections_of_the_metrics_server(attack: Attack) -> None:
    assert attack.start(idle_tcp, attack.daemon.metrics_port, 300).heard() > 0
    attack.hold(3)
    threads = attack.settled(attack.daemon.threads)
    print(f"{threads} threads")
    attack.check()
    assert threads < 60, f"the daemon has {threads} threads"


def idle_tcp(say: Say, port: int, count: int) -> None:
    held, sent = [], 0
    for _ in range(count):
        client = socket.socket()
        # If the backlog is full, connect() times out, but the kernel keeps trying to connect.
        client.settimeout(0.1)
        with contextlib.suppress(OSError):
            client.connect(("127.0.0.1", port))
            client.send(b"GET /metrics HTTP/1.1\r\n")
            sent += 1
        held.append(client)
    say(sent)
    signal.pause()


def test_a_silent_connection_is_closed(daemon: Daemon) -> None:
    """Neither a silent connection nor a connection with half a hello outlives the deadline of the
    hello."""
    silent, half = ShimClient(daemon.shims), ShimClient(daemon.shims)
    half.raw(b"\x40\x00\x00\x00{")
    assert silent.closed(HELLO_DEADLINE_S)
    assert half.closed(HELLO_DEADLINE_S)
