# SPDX-License-Identifier: Apache-2.0
"""Sessions that come and go must not leave descriptors open in the daemon."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

from sentineld.model import protocol
from tests.hostile.attack import Attack, attack_alone
from tests.hostile.attacker import OTHER_USER, Say
from tests.hostile.shim_client import Segment, ShimClient, registered

SESSIONS = 60
LIMIT = 256


def come_and_go(say: Say, path: str, count: int) -> None:
    """Register this process and hang up, again and again."""
    for _ in range(count):
        client, segment = registered(Path(path))
        client.close()
        segment.close()
        time.sleep(0.005)


def register_and_stay(say: Say, path: str) -> None:
    client, _ = registered(Path(path))
    say("registered")
    client.closed(600)


def hello_of_the_dead(say: Say, path: str, count: int) -> None:
    """Let a child connect, kill the child, and send a hello on the child's connection."""
    answers: dict[str, int] = {}
    for _ in range(count):
        client, pid = _connected_by_a_child(path)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        segment = Segment()
        os.close(client.register(segment))
        answer = client.answer()
        kind = str(answer["type"] if answer else None)
        answers[kind] = answers.get(kind, 0) + 1
        client.close()
        segment.close()
    say(answers)


def _connected_by_a_child(path: str) -> tuple[ShimClient, int]:
    """Return a connection that a child of this process has made, and the child's pid."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        client = ShimClient(Path(path))
        socket.send_fds(theirs, [b"x"], [client.socket.fileno()])
        signal.pause()
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    ours.close()
    theirs.close()
    return ShimClient.adopt(socket.socket(fileno=fds[0])), pid


def test_sessions_that_come_and_go_leave_no_descriptor(attack: Attack) -> None:
    attack.start(come_and_go, str(attack.daemon.shims), SESSIONS).finish()
    attack.check()


def test_a_hello_of_a_dead_process_leaves_no_descriptor(attack: Attack) -> None:
    attacker = attack.start(hello_of_the_dead, str(attack.daemon.shims), 20)
    answers = attacker.heard()
    assert "welcome" not in answers, answers
    attacker.finish()
    attack.check()


def test_more_sessions_than_descriptors_one_after_the_other() -> None:
    with attack_alone("more sessions than descriptors", descriptors=LIMIT) as attack:
        attack.start(come_and_go, str(attack.daemon.shims), LIMIT + 20).finish()
        attack.check()


def occupy(say: Say, path: str, count: int) -> None:
    """Begin a hello with 8 descriptors on each of many connections, but never complete it."""
    held = []
    event = os.eventfd(0)
    for _ in range(count):
        with contextlib.suppress(OSError):
            client = ShimClient(Path(path))
            client.raw(b"\xff\x00\x00\x00{", [event] * 8)
            held.append(client)
    say("occupied")
    signal.pause()


def test_a_flood_of_descriptors_ends_no_session_of_another_user() -> None:
    with attack_alone("a flood at a low limit", descriptors=LIMIT) as attack:
        daemon = attack.daemon
        bystander = attack.start(register_and_stay, str(daemon.shims), user=OTHER_USER)
        bystander.heard()
        attack.start(occupy, str(daemon.shims), 60).heard()
        attack.hold(5)
        session = daemon.session(bystander.pid)
        assert session is not None, "the flood ended a session of another user"
        attack.check()


def test_a_user_can_register_after_the_flood_is_over() -> None:
    with attack_alone("after a flood at a low limit", descriptors=LIMIT) as attack:
        attacker = attack.start(occupy, str(attack.daemon.shims), 60)
        attacker.heard()
        attacker.close()
        later = attack.start(register_and_stay, str(attack.daemon.shims), user=OTHER_USER)
        assert later.heard() == "registered"
        attack.check()


def test_a_refused_hello_leaves_no_descriptor(attack: Attack) -> None:
    attack.start(refused, str(attack.daemon.shims), 50).finish()
    attack.check()


def refused(say: Say, path: str, count: int) -> None:
    """Send hellos that are wrong in several ways."""
    wrong: list[dict[str, Any]] = [{"version": protocol.SHIM_VERSION + 1}, {"residency": True}]
    for number in range(count):
        client, segment = ShimClient(Path(path)), Segment()
        event = os.eventfd(0)
        client.hello([segment.fd, event], **wrong[number % 2])
        answer = client.answer()
        assert answer is None or answer["type"] == "refused", json.dumps(answer)
        client.close()
        segment.close()
        os.close(event)
