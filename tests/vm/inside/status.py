# SPDX-License-Identifier: Apache-2.0
"""Prints the answer to the verb `status` as JSON: `python3 -IS status.py SOCKET`.

An emulated guest needs two seconds to start sentinelctl, and a tenth of that to start this program,
which imports only the modules that it needs.
"""

import socket
import struct
import sys

REQUEST = b'{"version": 1, "verb": "status", "arguments": {}}'


def receive(connection: socket.socket, size: int) -> bytes:
    """Read exactly SIZE bytes."""
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise SystemExit("the daemon hung up")
        data += part
    return data


with socket.socket(socket.AF_UNIX) as control:
    control.connect(sys.argv[1])
    control.sendall(struct.pack("<I", len(REQUEST)) + REQUEST)
    (length,) = struct.unpack("<I", receive(control, 4))
    print(receive(control, length).decode())
