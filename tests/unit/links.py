# SPDX-License-Identifier: Apache-2.0
"""A real link to a process that a test plays: its socket's other end and its control words."""

from __future__ import annotations

import os
import socket

from sentineld.control.frames import FrameSocket
from sentineld.model import protocol
from sentineld.observe.shim_link import ShimLink
from tests.unit.segment import Writer


class Linked:
    """link: the daemon's end. shim: the process's. writer: what the process writes."""

    def __init__(self, **words: int) -> None:
        ours, theirs = socket.socketpair()
        self.shim, self._daemon = FrameSocket(ours), FrameSocket(theirs)
        self.writer = Writer(**words)
        event = os.eventfd(0)
        self.shim.send({}, [self.writer.fd, event])
        os.close(event)
        self._daemon.receive()
        hello = {"version": protocol.SHIM_VERSION, "threads": 1}
        self.link = ShimLink(self._daemon, hello)

    def set(self, **words: int) -> None:
        """Write control words."""
        for name, value in words.items():
            self.writer.header[name] = value

    def close(self) -> None:
        """Both ends."""
        self.link.close()
        self._daemon.close()
        self.shim.close()
        os.close(self.writer.fd)
