# SPDX-License-Identifier: Apache-2.0
"""The identity of the process at the other end of a connection. Real processes of an unprivileged
user connect."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.control.frames import FrameSocket
from sentineld.host.allowed_nodes import cpuset_nodes
from sentineld.observe.peer import Peer
from tests.unit.descriptors import open_descriptors
from tests.unit.observe.peers import USER, folder, needs_root, other, program
from tests.unit.waiting import wait


def refusal(peer: Peer) -> str:
    """Why require_own() refuses the process, or "" if it does not."""
    try:
        peer.require_own()
    except SentinelError as error:
        return f"{error.code}: {error.message}"
    return ""


def test_this_process_is_its_own_user_s() -> None:
    ours, theirs = socket.socketpair()
    connection = FrameSocket(theirs)
    peer = Peer.of(connection)
    assert (peer.pid, peer.uid, peer.gid) == (os.getpid(), os.getuid(), os.getgid())
    assert refusal(peer) == ""
    peer.close()
    connection.close()
    ours.close()


@needs_root
def test_a_user_s_process_is_pinned_until_it_exits() -> None:
    with other() as (process, frames):
        peer = Peer.of(frames)
        assert (peer.pid, peer.uid, peer.gid) == (process.process.pid, USER, USER)
        assert refusal(peer) == ""
        process.end()
        assert refusal(peer).startswith("no-such-process")
        with pytest.raises(SentinelError) as caught:
            Peer.of(frames)
        assert caught.value.code == "no-such-process"
        peer.close()


@needs_root
def test_a_kernel_without_pidfds_of_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: FrameSocket) -> int:
        raise OSError(errno.ENOPROTOOPT, "Protocol not available")

    monkeypatch.setattr(FrameSocket, "peer_pidfd", missing)
    with other() as (process, frames):
        peer = Peer.of(frames)
        assert (peer.pid, peer.uid) == (process.process.pid, USER)
        peer.close()
        process.end()
        with pytest.raises(SentinelError) as caught:
            Peer.of(frames)
        assert caught.value.code == "no-such-process"


@needs_root
@pytest.mark.parametrize(
    ("mode", "group", "why"),
    [(0o4755, 0, "user IDs"), (0o2755, 4, "group IDs"), (0o711, 0, "not dumpable")],
    ids=["setuid", "setgid", "unreadable"],
)
def test_a_protected_program_is_refused_before_and_after_the_hello(
    mode: int, group: int, why: str
) -> None:
    with folder() as place, other() as (process, frames):
        sleep = program(place, mode, group)
        peer = Peer.of(frames)
        process.do(f"os.execv({str(sleep)!r}, ['sleep', '1000'])", answers=False)
        wait(lambda: refusal(peer))
        # While execve() is still replacing the program, the refusal may have another reason.
        wait(lambda: why in refusal(peer))
        assert refusal(peer).startswith("not-permitted")
        with pytest.raises(SentinelError) as caught:
            Peer.of(frames)
        assert caught.value.code == "not-permitted"
        peer.close()


@needs_root
def test_an_ordinary_program_is_accepted() -> None:
    with folder() as place, other() as (process, frames):
        sleep = program(place, 0o755)
        peer = Peer.of(frames)
        process.do(f"os.execv({str(sleep)!r}, ['sleep', '1000'])", answers=False)
        wait(lambda: Path(f"/proc/{peer.pid}/comm").read_text().startswith("sleep"))
        assert refusal(peer) == ""
        peer.close()


@needs_root
def test_a_process_that_protects_itself_is_refused() -> None:
    with other() as (process, frames):
        peer = Peer.of(frames)
        process.do("ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)")
        assert os.stat(f"/proc/{peer.pid}").st_uid == USER  # the owner of /proc/PID does not change
        assert "not dumpable" in refusal(peer)
        process.do("ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)")
        assert refusal(peer) == ""
        peer.close()


@needs_root
@pytest.mark.parametrize("name", ["a\\rUid:", "\\x1cGid:", "\\xff"])
def test_a_process_with_a_hostile_name_is_accepted(name: str) -> None:
    with other() as (process, frames):
        peer = Peer.of(frames)
        process.do(f"ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)")
        assert refusal(peer) == ""
        assert 0 in cpuset_nodes(peer.pid)
        peer.close()


@needs_root
def test_a_root_process_that_became_another_user_is_refused() -> None:
    with other(user=None) as (process, frames):
        peer = Peer.of(frames)
        process.do("os.setresuid(1000, 1000, 0)")
        assert "[1000, 1000, 0, 1000]" in refusal(peer)
        assert "all of them must be those of user 0, group 0" in refusal(peer)
        peer.close()


def test_no_descriptor_stays_open() -> None:
    ours, theirs = socket.socketpair()
    connection = FrameSocket(theirs)
    before = open_descriptors()
    for _ in range(10):
        Peer.of(connection).close()
    assert open_descriptors() <= before
    connection.close()
    ours.close()
