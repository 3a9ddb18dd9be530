# SPDX-License-Identifier: Apache-2.0
"""A real ShimLink, which is the daemon's connection to one shim.

The test takes the place of the process: it uses the process's end of the socket, and it writes the
words of the control segment (memory that the process shares with the daemon).
"""

from __future__ import annotations

import os
import socket

from sentineld.control.frames import FrameSocket
from sentineld.model import protocol
from sentineld.observe.peer import Peer
from sentineld.observe.pidfd import Pidfd
from sentineld.observe.shim_link import ShimLink
from sentineld.observe.writefds import ReceivedWriteFds, WriteFds
from tests.unit.segment import Writer


def received_writes(pid: int, way: str, fds: list[int]) -> WriteFds:
    """The daemon's WriteFds (writefds.py) for descriptors that a process of this user has sent."""
    peer = Peer(pid, os.getuid(), os.getgid(), Pidfd(pid))
    try:
        return ReceivedWriteFds(peer, way, fds).take()
    finally:
        peer.close()


class Linked:
    """Both ends of a shim connection.

    link: the daemon's end.
    shim: the process's end of the socket.
    writer: the process's side of the control segment.
    words: initial values of control words.
    """

    def __init__(self, **words: int) -> None:
        ours, theirs = socket.socketpair()
        self.shim, self._daemon = FrameSocket(ours), FrameSocket(theirs)
        self.writer = Writer(**words)
        self.offer()
        self.link = self.again()

    def offer(self) -> None:
        """Send the descriptors that belong to a hello, and receive them at the daemon's end."""
        event = os.eventfd(0)
        self.shim.send({}, [self.writer.fd, event])
        os.close(event)
        self.receive()

    def again(self) -> ShimLink:
        """A new link with the descriptors that offer() sent. Raises the same errors as
        ShimLink()."""
        return ShimLink(self._daemon, {"version": protocol.SHIM_VERSION, "threads": 1})

    def receive(self) -> None:
        """Receive the shim's data at the daemon's end of the socket."""
        self._daemon.receive()

    def set(self, **words: int) -> None:
        """Write these control words as the process would."""
        for name, value in words.items():
            self.writer.header[name] = value

    def close(self) -> None:
        """Close the link and both ends of the socket."""
        self.link.close()
        self.close_shim()

    def close_shim(self) -> None:
        """Close both ends of the socket, after a session has closed the link."""
        self._daemon.close()
        self.shim.close()
        os.close(self.writer.fd)
