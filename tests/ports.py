# SPDX-License-Identifier: Apache-2.0
"""Finds a port for a server that a test starts."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A TCP port of the loopback address on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port
