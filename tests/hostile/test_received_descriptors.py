# SPDX-License-Identifier: Apache-2.0
"""Attack: descriptors that block or cost memory when they are used or closed.

Each kind of descriptor is sent at each place in the protocol where the daemon takes descriptors.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hostile.attack import Attack, each_kind
from tests.hostile.attacker import OTHER_USER, Attacker, Say
from tests.hostile.fuse import SilentFileSystem, available
from tests.hostile.shim_client import Segment, ShimClient, frame, memfd, registered

LINGER_S = 60
HUGE_BYTES = 1 << 40
HOLD_S = 4.0
"""Duration of the attack after the attackers have sent a descriptor at each place."""
SENT = "sent"

Opener = Callable[[], int]


def lingering() -> int:
    """A TCP connection with unsent data: its last close() blocks for LINGER_S."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
    client.connect(listener.getsockname())
    _KEPT.append(listener.accept()[0])
    listener.close()
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            client.send(b"x" * 65536)
    return client.detach()


def pipe() -> int:
    """The read end of a pipe to which nothing is written."""
    reading, writing = os.pipe()
    _FDS.append(writing)
    return reading


def huge() -> int:
    """A sparse file of a terabyte."""
    return memfd(HUGE_BYTES)


def large() -> int:
    """A sparse file. If it is sent as the file with the operators' accesses, the daemon reads only
    a part of it."""
    return memfd(200 << 20)


def nested_epoll() -> int:
    """A chain of five epoll instances, each of which watches the next one."""
    outer = inner = select.epoll()
    _KEPT.append(inner)
    for _ in range(4):
        outer = select.epoll()
        with contextlib.suppress(OSError):
            outer.register(inner.fileno(), select.EPOLLIN)
        _KEPT.append(outer)
        inner = outer
    return os.dup(outer.fileno())


def socket_in_socket() -> int:
    """A socket whose queue holds sockets, whose queues hold further sockets."""
    inner = os.eventfd(0)
    for _ in range(3):
        sending, receiving = socket.socketpair()
        for _ in range(8):
            socket.send_fds(sending, [b"x"], [inner] * 16)
        _KEPT.append(sending)
        inner = receiving.detach()
    return inner


_KEPT: list[object] = []
_FDS: list[int] = []
KINDS: dict[str, Opener] = {
    one.__name__: one for one in (lingering, pipe, huge, large, nested_epoll, socket_in_socket)
}


_SENT: list[int] = []


def _sent(open_one: Opener) -> int:
    _SENT.append(open_one())
    return _SENT[-1]


# The functions in PLACES. They are generators that yield after every message with a descriptor.


def _as_control(path: Path, open_one: Opener) -> Iterator[None]:
    event = os.eventfd(0)
    client = _kept(ShimClient(path))
    client.hello([_sent(open_one), event])
    yield
    client.answer(5)


def _as_event(path: Path, open_one: Opener) -> Iterator[None]:
    client = _kept(ShimClient(path))
    client.hello([Segment().fd, _sent(open_one)])
    yield
    client.answer(5)


def _as_residency(path: Path, open_one: Opener) -> Iterator[None]:
    client = _kept(ShimClient(path))
    client.hello([Segment().fd, os.eventfd(0), _sent(open_one)], residency=True)
    yield
    client.answer(5)


def _too_many(path: Path, open_one: Opener) -> Iterator[None]:
    client = _kept(ShimClient(path))
    client.hello([Segment().fd, os.eventfd(0), *(_sent(open_one) for _ in range(3))])
    yield
    client.answer(5)
    client.close()


def _without_hello(path: Path, open_one: Opener) -> Iterator[None]:
    client = _kept(ShimClient(path))
    client.raw(b"\x10", [_sent(open_one)] * 4)
    yield
    time.sleep(0.2)
    client.close()


def _before_a_bad_frame(path: Path, open_one: Opener) -> Iterator[None]:
    client = _kept(ShimClient(path))
    client.raw(b"\x02\x00\x00\x00[]", [_sent(open_one)] * 2)
    yield
    client.closed(5)


def _as_accesses(path: Path, open_one: Opener) -> Iterator[None]:
    client, _ = registered(path)
    _kept(client).send({"type": "accesses", "step": 1, "names": []}, [_sent(open_one)])
    yield
    time.sleep(0.5)


def _as_writes(path: Path, open_one: Opener) -> Iterator[None]:
    for way in ("pagemap-scan", "soft-dirty"):
        client, _ = registered(path)
        fds = [_sent(open_one), _sent(open_one)]
        _kept(client).send({"type": "writes", "way": way}, fds)
        yield
    time.sleep(0.5)


def _as_map_of_a_layout(path: Path, open_one: Opener) -> Iterator[None]:
    client, _ = registered(path)
    answer = {"type": "layout", "layout_id": 1, "ok": True, "residency": True}
    _kept(client).send(answer, [_sent(open_one)])
    yield
    time.sleep(0.5)


def _with_a_note(path: Path, open_one: Opener) -> Iterator[None]:
    """Send many `note` messages, each with descriptors that the message does not need."""
    client, _ = registered(path)
    _kept(client)
    for _ in range(20):
        client.raw(frame({"type": "note", "text": "x"}), [_sent(open_one)] * 8)
        yield


def _kept(client: ShimClient) -> ShimClient:
    _KEPT.append(client)
    return client


Place = Callable[[Path, Opener], Iterator[None]]
PLACES: dict[str, Place] = {
    one.__name__: one
    for one in (
        _as_control,
        _as_event,
        _as_residency,
        _too_many,
        _without_hello,
        _before_a_bad_frame,
        _as_accesses,
        _as_writes,
        _as_map_of_a_layout,
        _with_a_note,
    )
}


def once(say: Say, path: str, place: Place, open_one: Opener) -> None:
    """Send descriptors from open_one() at one place in the protocol (see PLACES), then close this
    process's copies, so that only the daemon's copies are left. Report SENT after the first message
    with descriptors, or the error that prevented this message."""
    answer = ""
    sending = place(Path(path), open_one)
    try:
        for _ in sending:
            if not answer:
                answer = SENT
                say(answer)
    except (OSError, AssertionError, EOFError) as error:
        if not answer:
            say(repr(error))
    for fd in _SENT:
        os.close(fd)
    signal.pause()


def send_everywhere(attack: Attack, open_one: Opener) -> None:
    """Send descriptors from open_one() at each place; then check that another user can register."""
    # If the descriptors block when they are closed, the daemon refuses the attacking user after
    # closing.CLOSING_MAX of them. The last place gets more descriptors than this. So it is attacked
    # after the other places, which together get fewer.
    *others, last = PLACES
    for names in (others, [last]):
        # Start a process for each place, because the attacker may block, too.
        attackers = {
            name: attack.start(once, str(attack.daemon.shims), PLACES[name], open_one)
            for name in names
        }
        answers = {name: attacker.heard() for name, attacker in attackers.items()}
        assert answers == dict.fromkeys(names, SENT)
    attack.hold(HOLD_S)
    later = attack.start(register, str(attack.daemon.shims), user=OTHER_USER)
    assert later.heard() == "registered"


@pytest.mark.parametrize("kind", each_kind(KINDS, ("lingering", "huge", "large")))
def test_a_descriptor_neither_blocks_nor_costs_memory(attack: Attack, kind: str) -> None:
    send_everywhere(attack, KINDS[kind])
    attack.check()


def test_descriptors_of_a_file_system_that_never_answers(attack: Attack) -> None:
    if not available():
        pytest.skip("needs /dev/fuse")
    files = SilentFileSystem(attack.daemon.folder / "fuse")
    attack.before_release.append(files.close)
    path = str(files.file)
    send_everywhere(attack, lambda: os.open(path, os.O_RDWR))
    attack.check()


def register(say: Say, path: str) -> None:
    client, _ = registered(Path(path))
    say("registered")
    client.closed(600)


@pytest.mark.parametrize("place", PLACES)
def test_a_descriptor_that_cannot_be_sent_is_reported(place: str, tmp_path: Path) -> None:
    attacker = Attacker(once, str(tmp_path / "none.sock"), PLACES[place], pipe)
    try:
        assert "Error" in attacker.heard()
    finally:
        attacker.close()
