# SPDX-License-Identifier: Apache-2.0
"""A FUSE file system whose server lets files be opened, but answers no request on an open file.

The server speaks the kernel's protocol (linux/fuse.h) on /dev/fuse in a process of its own. Once a
file is open, each system call on it that sends a request to the server blocks. This includes
close(), which sends FLUSH.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
from pathlib import Path

LOOKUP, FORGET, GETATTR, OPEN, INIT = 1, 2, 3, 14, 26
ROOT_ID, FILE_ID = 1, 2
_HEADER = struct.Struct("<IIQQIIIHH")
_ANSWER = struct.Struct("<IiQ")
_MNT_DETACH = 2
_S_IFDIR, _S_IFREG = 0o040755, 0o100666
FILE_BYTES = 1 << 30
_libc = ctypes.CDLL(None, use_errno=True)


class SilentFileSystem:
    """A mounted file system in which each name refers to the same file, and in which reads never
    return. Needs root and /dev/fuse."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.file = folder / "file"
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
        if _libc.mount(b"hostile", bytes(folder), b"fuse", 0, options.encode()) != 0:
            number = ctypes.get_errno()
            os.close(device)
            raise OSError(number, os.strerror(number))
        self._server = os.fork()
        if self._server == 0:
            try:
                _serve(device)
            finally:
                os._exit(0)
        # Only the server keeps /dev/fuse open, so that the connection ends with the server.
        os.close(device)

    def close(self) -> None:
        """Kill the server and unmount; all calls that wait for the server fail."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._server, signal.SIGKILL)
            os.waitpid(self._server, 0)
        _libc.umount2(bytes(self.folder), _MNT_DETACH)


def _serve(device: int) -> None:
    while True:
        data = os.read(device, 1 << 20)
        _, opcode, unique, node, *_ = _HEADER.unpack_from(data)
        if opcode == INIT:
            answer = struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 8, 8, 4096, 1, 0, 0, 0)
        elif opcode == LOOKUP:
            answer = struct.pack("<QQQQII", FILE_ID, 0, 3600, 0, 0, 0) + _attributes(FILE_ID)
        elif opcode == GETATTR and node == ROOT_ID:
            answer = struct.pack("<QII", 3600, 0, 0) + _attributes(ROOT_ID)
        elif opcode == OPEN:
            answer = struct.pack("<QII", 1, 0, 0)
        else:
            continue
        with contextlib.suppress(OSError):
            os.write(device, _ANSWER.pack(_ANSWER.size + len(answer), 0, unique) + answer)


def _attributes(node: int) -> bytes:
    mode, size = (_S_IFDIR, 0) if node == ROOT_ID else (_S_IFREG, FILE_BYTES)
    times = (0,) * 6
    return struct.pack("<QQQ3Q3I7I", node, size, 0, *times, mode, 1, 0, 0, 0, 4096, 0)


def available() -> bool:
    """Whether /dev/fuse can be opened."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError:
        return False
    return True
