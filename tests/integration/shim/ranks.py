# SPDX-License-Identifier: Apache-2.0
"""Replaces torchrun where it does not work: ranks.py N SCRIPT ARGS starts N ranks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys


def main() -> int:
    count, command = int(sys.argv[1]), [sys.executable, *sys.argv[2:]]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(command, env={**os.environ, **common, "RANK": str(rank), "USE_LIBUV": "0"})
        for rank in range(count)
    ]
    # The status of a rank that a signal ended is negative.
    return max(abs(rank.wait()) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
