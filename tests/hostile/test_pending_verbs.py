# SPDX-License-Identifier: Apache-2.0
"""Attack: verbs that wait for a process that never answers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

from sentineld.base.errors import SentinelError
from sentineld.control.client import request
from sentineld.control.frames import encode
from tests.hostile.attack import Attack, ManagedTraining
from tests.hostile.attacker import OTHER_USER, Attacker, Say
from tests.hostile.shim_client import registered

PROCESSES = 12
"""More processes than the daemon has threads for quick verbs, which never wait for a process
(QUICK_THREADS in control/server.py). The test needs several processes, because the daemon carries
out only one request of a process at a time."""
REQUESTS = 4


def pend(say: Say, shims: str, control: str, verb: str) -> None:
    """Register, run no step, and send verbs that wait for steps; keep the connections open."""
    _kept = registered(Path(shims))
    held = []
    for _ in range(REQUESTS):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.connect(control)
        arguments = {"pid": os.getpid(), "steps": 1}
        with contextlib.suppress(OSError):  # the daemon may refuse some connections
            client.sendall(encode({"version": 1, "verb": verb, "arguments": arguments}))
        held.append(client)
    say("sent")
    signal.pause()


def pend_in_processes(attack: Attack) -> list[Attacker]:
    """Start many processes with pending verbs."""
    paths = str(attack.daemon.shims), str(attack.daemon.control)
    attackers = [attack.start(pend, *paths, "record") for _ in range(PROCESSES)]
    for attacker in attackers:
        attacker.heard()
    return attackers


def test_pending_verbs_block_no_other_verb(
    attack: Attack, managed_training: ManagedTraining
) -> None:
    pend_in_processes(attack)
    attack.hold(2)
    # A verb that can be carried out is answered although other verbs wait.
    answer = attack.daemon.ask("meter", 240.0, pid=managed_training.pid, steps=1)
    assert len(answer["steps"]) == 1
    attack.check()


def test_pending_verbs_of_stopped_processes_block_no_other_verb(attack: Attack) -> None:
    for attacker in pend_in_processes(attack):
        attacker.signal(signal.SIGSTOP)
    attack.hold(3)
    attack.check()


def test_the_end_of_a_client_cancels_its_verb(attack: Attack) -> None:
    """Clients that hang up leave no thread and no request behind."""
    daemon = attack.daemon
    threads = attack.settled(daemon.threads)
    attacker = attack.start(pend_and_hang_up, str(daemon.shims), str(daemon.control), 30)
    attacker.heard()
    deadline_s = time.monotonic() + 120
    # A few more threads than before are allowed: the attacker's session, for example, has a thread.
    while (now := attack.settled(daemon.threads)) > threads + 6 and time.monotonic() < deadline_s:
        time.sleep(0.2)
    attacker.signal(signal.SIGUSR1)
    # The verbs of the clients that hung up do not make the daemon refuse a new verb.
    assert attacker.heard() != "wrong-state"
    attack.check()
    assert now <= threads + 6, f"{now - threads} threads wait for clients that have gone"


def pend_and_hang_up(say: Say, shims: str, control: str, count: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    _kept = registered(Path(shims))
    for _ in range(count):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.connect(control)
        arguments = {"pid": os.getpid(), "steps": 1}
        with contextlib.suppress(OSError):
            client.sendall(encode({"version": 1, "verb": "record", "arguments": arguments}))
        time.sleep(0.02)
        client.close()
    say("hung up")
    signal.sigwait({signal.SIGUSR1})
    deadline_s = time.monotonic() + 120
    while (code := record(control)) == "wrong-state" and time.monotonic() < deadline_s:
        time.sleep(0.1)  # the daemon may not have cancelled the last verb yet
    say(code)


def record(control: str) -> str:
    """Record a step of this process; returns "recorded" or the error's code."""
    try:
        request(Path(control), "record", 3.0, pid=os.getpid(), steps=1)
        return "recorded"
    except SentinelError as error:
        return error.code


def flood(say: Say, control: str, duration_s: float) -> None:
    """Ask for the status as fast as possible, without reading the answers."""
    end_s = time.monotonic() + duration_s
    held: list[socket.socket] = []
    frame = encode({"version": 1, "verb": "status", "arguments": {}})
    while time.monotonic() < end_s:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            client.connect(control)
            client.send(frame)
        except OSError:
            client.close()
            time.sleep(0.001)
            continue
        held.append(client)
        if len(held) > 100:
            held.pop(0).close()
    say("done")


def test_a_flood_of_requests(attack: Attack) -> None:
    flooded = (flood, str(attack.daemon.control), attack.scaled_s(5.0))
    attacker = attack.start(*flooded, user=OTHER_USER)
    other = attack.start(*flooded)
    other.heard()
    attacker.close()
    attack.check()
