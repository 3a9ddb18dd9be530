# SPDX-License-Identifier: Apache-2.0
"""A process that registers with the daemon and never begins a step: `idle_process.py SOCKET`.

It needs neither torch nor the shim's C library. It prints a line when the daemon has welcomed it,
and waits for a signal that ends it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys

from sentineld.control.frames import FrameSocket
from sentineld.model import protocol
from sentineld.shim.binding import bound_nodes
from tests.unit.segment import Writer

WELCOMED = "registered\n"


def main() -> None:
    """Send the hello, and wait for a signal."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])
    shim = FrameSocket(connection)
    hello = {
        "type": "hello",
        "version": protocol.SHIM_VERSION,
        "threads": 1,
        "bound_nodes": bound_nodes(),
    }
    shim.send(hello, [Writer().fd, os.eventfd(0)])
    while not (answers := shim.receive()):
        select.select([shim], [], [])
    assert answers[0]["type"] == "welcome", answers
    sys.stdout.write(WELCOMED)
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main()
