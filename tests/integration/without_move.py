# SPDX-License-Identifier: Apache-2.0
"""Run a command as on a kernel whose userfaultfd lacks features: without_move.py COMMAND ...

A seccomp filter makes the ioctl UFFDIO_API fail with EINVAL, the kernel's error for an unknown
feature. The filter cannot read the requested features, so every UFFDIO_API fails.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET
ALLOW, FAIL = 0x7FFF0000, 0x00050000 | errno.EINVAL
NUMBER, SECOND_ARGUMENT = 0, 24  # offsets in struct seccomp_data
IOCTL, UFFDIO_API = 16, 0xC018AA3F


def main() -> None:
    filters = (
        (LOAD, 0, 0, NUMBER),
        (EQUAL, 0, 3, IOCTL),
        (LOAD, 0, 0, SECOND_ARGUMENT),
        (EQUAL, 0, 1, UFFDIO_API),
        (RETURN, 0, 0, FAIL),
        (RETURN, 0, 0, ALLOW),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in filters))
    program = struct.pack("HxxxxxxQ", len(filters), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program
    ):
        raise OSError(ctypes.get_errno(), "prctl")
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
