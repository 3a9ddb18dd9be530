# SPDX-License-Identifier: Apache-2.0
"""Attack: messages that arrive faster than the daemon can process them, or that fill its log."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sentineld.control.frames import encode
from sentineld.model.protocol import SHIM_VERSION
from sentineld.observe.shim_server import HELLO_S
from tests.hostile.attack import Attack, each_kind
from tests.hostile.attacker import Say, lasts
from tests.hostile.shim_client import Segment, ShimClient, frame, framed, memfd, registered
from tests.unit.waiting import wait

FLOOD_S = 6.0
PROCESSES = 3


def notes() -> Iterator[bytes]:
    line = frame({"type": "note", "text": "x" * 400}) * 50
    while True:
        yield line


def long_notes() -> Iterator[bytes]:
    text = frame({"type": "note", "text": "y" * 1_000_000})
    while True:
        yield text


def layers() -> Iterator[bytes]:
    """Names of layers: too many, too long, and with too many characters in total."""
    many = frame({"type": "layers", "names": ["z"] * 100_000})
    long = frame({"type": "layers", "names": ["z" * 1_000_000] * 4})
    total = frame({"type": "layers", "names": ["z" * 60] * 60_000})
    while True:
        yield from (many, long, total)


def impossible_accesses() -> Iterator[bytes]:
    line = frame({"type": "accesses", "step": 1, "names": [[1, "r", "n"]] * 1000})
    while True:
        yield line


def answers_to_no_layout() -> Iterator[bytes]:
    line = frame({"type": "layout", "layout_id": 0, "ok": False, "error": "e" * 400}) * 50
    while True:
        yield line


def unknown_messages() -> Iterator[bytes]:
    line = frame({"type": "thing", "text": "x" * 400}) * 50
    while True:
        yield line


def threads() -> Iterator[bytes]:
    line = frame({"type": "threads", "threads": 2}) * 500
    while True:
        yield line


def nested() -> Iterator[bytes]:
    """Deeply nested values, which are slow to decode."""
    line = framed(b'{"type":"note","text":' + b"[" * 800 + b"]" * 800 + b"}") * 50
    while True:
        yield line


FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    one.__name__: one
    for one in (
        notes,
        long_notes,
        layers,
        impossible_accesses,
        answers_to_no_layout,
        unknown_messages,
        threads,
        nested,
    )
}


def push(connection: socket.socket, data: bytes, timeout_s: float) -> int:
    """Send the bytes that the daemon takes within timeout_s; returns their number."""
    sent, end_s = 0, time.monotonic() + timeout_s
    connection.settimeout(timeout_s)
    with contextlib.suppress(OSError):
        while sent < len(data) and time.monotonic() < end_s:
            sent += connection.send(memoryview(data)[sent:])
    return sent


def flood(say: Say, path: str, chunks: Callable[[], Iterator[bytes]], duration_s: float) -> None:
    """Register and send as fast as the daemon reads; register again when the daemon hangs up."""
    end_s = time.monotonic() + duration_s
    sent = connections = 0
    while lasts(end_s, sent):
        with contextlib.suppress(OSError, AssertionError):
            client, segment = registered(Path(path))
            connections += 1
            for chunk in chunks():
                pushed = push(client.socket, chunk, 1.0)
                sent += pushed
                if pushed < len(chunk) or time.monotonic() >= end_s:
                    break
            client.close()
            segment.close()
    say([sent, connections])


@pytest.mark.parametrize(
    "kind", each_kind(FLOODS, ("notes", "layers", "impossible_accesses", "nested"))
)
def test_a_flood_of_messages_is_bounded(attack: Attack, kind: str) -> None:
    path = str(attack.daemon.shims)
    duration_s = attack.scaled_s(FLOOD_S if kind == "notes" else FLOOD_S / 2)
    attackers = [attack.start(flood, path, FLOODS[kind], duration_s) for _ in range(PROCESSES)]
    for attacker in attackers:
        sent, connections = attacker.heard()
        print(f"{sent / 2**20:.0f} MiB by {connections} connections")
        assert sent > 0
    attack.check()


def reconnect(say: Say, path: str, first: bytes, duration_s: float) -> None:
    """Repeatedly connect, send something invalid, and hang up."""
    end_s = time.monotonic() + duration_s
    count = 0
    while lasts(end_s, count):
        with contextlib.suppress(OSError):
            client = ShimClient(Path(path))
            client.raw(first)
            client.close()
            count += 1
    say(count)


INVALID = {
    "no-json": framed(b"\xff" * 64),
    "no-object": framed(b"[]"),
    "too-long": b"\xff\xff\xff\x7f",
    "no-hello": frame({"type": "note", "text": "x" * 400}),
    "version": frame({"type": "hello", "version": "v" * 1000}),
    "no-descriptors": frame({"type": "hello", "version": SHIM_VERSION}),
    "newlines": frame({"type": "hello", "version": "\n2026 ERROR all is lost\n" * 20}),
}


@pytest.mark.parametrize("kind", each_kind(INVALID, ("no-json", "version")))
def test_a_flood_of_invalid_hellos_is_logged_in_a_few_lines(attack: Attack, kind: str) -> None:
    path = str(attack.daemon.shims)
    attackers = [
        attack.start(reconnect, path, INVALID[kind], attack.scaled_s(3.0)) for _ in range(2)
    ]
    for attacker in attackers:
        connections = attacker.heard()
        print(connections, "connections")
        assert connections > 0
    attack.check()


def test_a_flood_of_invalid_requests_is_logged_in_a_few_lines(attack: Attack) -> None:
    path = str(attack.daemon.control)
    for first in (framed(b"\xff" * 64), encode({"version": 7, "verb": "x" * 10_000})):
        connections = attack.start(reconnect, path, first, attack.scaled_s(3.0)).heard()
        print(connections, "connections")
        assert connections > 0
    attack.check()


def come_and_go(say: Say, path: str, duration_s: float) -> None:
    """Register and hang up as fast as possible."""
    end_s = time.monotonic() + duration_s
    count = 0
    while lasts(end_s, count):
        with contextlib.suppress(OSError, AssertionError):
            client, segment = registered(Path(path))
            client.close()
            segment.close()
            count += 1
    say(count)


def test_a_flood_of_sessions_is_logged_in_a_few_lines(attack: Attack) -> None:
    attacker = attack.start(come_and_go, str(attack.daemon.shims), attack.scaled_s(6.0))
    sessions = attacker.heard()
    print(sessions, "sessions")
    assert sessions > 0
    attack.check()


def half_frames(say: Say, path: str, count: int) -> None:
    """Send all but the last byte of a frame of 7 MiB on each of many connections. Report the number
    of connections on which some of these bytes could be sent."""
    body = json.dumps({"type": "hello", "pad": "x" * (7 << 20)}).encode()
    data = framed(body)[:-1]
    held, took = [], 0
    for _ in range(count):
        with contextlib.suppress(OSError):
            client = ShimClient(Path(path))
            held.append(client)
            took += push(client.socket, data, 0.5) > 0
    say(took)
    signal.pause()


def test_half_frames_of_many_connections_cost_no_memory(attack: Attack) -> None:
    assert attack.start(half_frames, str(attack.daemon.shims), 16).heard() > 0
    attack.hold(1)
    attack.check()


def half_frames_of_sessions(say: Say, path: str, count: int) -> None:
    """Like half_frames(), but after a valid hello."""
    data = framed(json.dumps({"type": "note", "text": "x" * (7 << 20)}).encode())[:-1]
    held, took = [], 0
    for _ in range(count):
        with contextlib.suppress(OSError, AssertionError):
            client, segment = registered(Path(path))
            held.append((client, segment))
            took += push(client.socket, data, 0.5) > 0
    say(took)
    signal.pause()


def test_half_frames_of_sessions_cost_no_memory(attack: Attack) -> None:
    attackers = [
        attack.start(half_frames_of_sessions, str(attack.daemon.shims), 1) for _ in range(20)
    ]
    # The daemon may refuse some of the sessions.
    assert sum(attacker.heard() for attacker in attackers) > 0
    attack.hold(1)
    attack.check()


def half_requests(say: Say, path: str, count: int) -> None:
    """Like half_frames(), but on the control socket."""
    data = framed(b'"' + b"x" * (7 << 20))[:-1]
    held, took = [], 0
    for _ in range(count):
        with contextlib.suppress(OSError):
            client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            client.settimeout(0.5)
            client.connect(path)
            held.append(client)
            took += push(client, data, 0.5) > 0
    say(took)
    signal.pause()


def test_half_requests_cost_no_memory(attack: Attack) -> None:
    assert attack.start(half_requests, str(attack.daemon.control), 16).heard() > 0
    attack.hold(1)
    attack.check()


def byte_by_byte(say: Say, path: str, duration_s: float) -> None:
    """Send a hello one byte at a time; the daemon must neither block nor spin while it waits."""
    segment, event = Segment(), os.eventfd(0)
    data = frame({"type": "hello", "version": SHIM_VERSION, "pid": os.getpid(), "threads": 1})
    begin_s = time.monotonic()
    client = ShimClient(Path(path))
    client.raw(data[:1], [segment.fd, event])
    for at in range(1, len(data)):
        if time.monotonic() - begin_s > HELLO_S / 3:  # too slow: send the rest before the deadline
            client.raw(data[at:])
            break
        client.raw(data[at : at + 1])
        time.sleep(0.02)
    answer = client.answer()
    assert answer is not None
    assert answer["type"] == "welcome", answer
    time.sleep(max(begin_s + duration_s - time.monotonic(), 0))
    say("done")
    signal.pause()


def test_a_hello_byte_by_byte(attack: Attack) -> None:
    duration_s = attack.scaled_s(4.0)
    attackers = [attack.start(byte_by_byte, str(attack.daemon.shims), duration_s) for _ in range(8)]
    for attacker in attackers:
        attacker.heard()
    attack.check()


def register_and_exit(path: Path, running: int) -> None:
    """Register and exit. A child keeps the connection, and sends ten messages a second until the
    other end of the pipe `running` is closed."""
    client, _ = registered(path)
    if os.fork():
        return
    while not select.select([running], [], [], 0.1)[0]:
        client.send({"type": "threads", "threads": 1})


def messages_after_an_exit(say: Say, path: str) -> None:
    running, stop = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(stop)
            register_and_exit(Path(path), running)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0, "the process could not register"
    say(pid)
    signal.pause()


def test_messages_do_not_hide_an_exit(attack: Attack) -> None:
    """The daemon's periodic checks of a process go on while messages arrive."""
    pid = attack.start(messages_after_an_exit, str(attack.daemon.shims)).heard()
    wait(lambda: attack.daemon.session(pid) is None)
    attack.check()


def layers_with_descriptors(say: Say, path: str, duration_s: float) -> None:
    """Send messages with descriptors that the daemon does not use."""
    client, _ = registered(Path(path))
    fd, end_s = memfd(4096), time.monotonic() + duration_s
    sent = 0
    with contextlib.suppress(OSError):
        while lasts(end_s, sent):
            client.send({"type": "layers", "names": ["x"]}, [fd] * 4)
            sent += 1
    say(sent)
    signal.pause()


def test_descriptors_of_messages_are_bounded(attack: Attack) -> None:
    attackers = [
        attack.start(layers_with_descriptors, str(attack.daemon.shims), 3.0) for _ in range(4)
    ]
    for attacker in attackers:
        assert attacker.heard() > 0
    descriptors = attack.settled(attack.daemon.descriptors)
    attack.hold(1)
    attack.check()
    print(f"{descriptors} descriptors while connected")
