# SPDX-License-Identifier: Apache-2.0
"""Opens the descriptors through which another process can track this process's writes.

One descriptor is for the process's pagemap. The other is preferably a userfaultfd with asynchronous
write protection: the kernel lets each write through and marks the page as written. The protection
ends when the last copy of the userfaultfd is closed. If the kernel or a seccomp filter refuses a
userfaultfd, the second descriptor is /proc/self/clear_refs, through which the soft-dirty bits are
cleared.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct

from sentineld.shim.client import Client
from sentineld.shim.native import Native
from sentineld.shim.selftest import HEAP_BASE_OFFSET, HEAP_BYTES_OFFSET

SCAN = "pagemap-scan"
SOFT_DIRTY = "soft-dirty"

_USERFAULTFD_NUMBERS = {"x86_64": 323, "aarch64": 282}
# UFFD_USER_MODE_ONLY: with this flag, unprivileged processes can create a userfaultfd. Writes in
# kernel mode are tracked nevertheless, because the kernel itself resolves the faults of
# asynchronous write protection.
_USER_MODE_ONLY = 1
_API = 0xAA
_FEATURES = 1 << 13 | 1 << 15  # UFFD_FEATURE_WP_UNPOPULATED, UFFD_FEATURE_WP_ASYNC
_REGISTER_MODE_WP = 2
_IOC_API = 0xC018AA3F  # _IOWR(0xAA, 0x3F, struct uffdio_api)
_IOC_REGISTER = 0xC020AA00  # _IOWR(0xAA, 0x00, struct uffdio_register)


def protect_writes(start: int, length_bytes: int) -> int:
    """Return a userfaultfd with the range registered for asynchronous write protection.

    No page is protected until a PAGEMAP_SCAN with PM_SCAN_WP_MATCHING protects it. Raises OSError
    if the kernel refuses a userfaultfd or does not support asynchronous write protection.
    """
    number = _USERFAULTFD_NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(f"no userfaultfd system call number known for {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    flags = os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY
    fd = int(libc.syscall(ctypes.c_long(number), ctypes.c_long(flags)))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"userfaultfd: {os.strerror(code)}")
    try:
        fcntl.ioctl(fd, _IOC_API, struct.pack("3Q", _API, _FEATURES, 0))
        fcntl.ioctl(fd, _IOC_REGISTER, struct.pack("4Q", start, length_bytes, _REGISTER_MODE_WP, 0))
    except OSError as error:
        os.close(fd)
        raise OSError(error.errno, f"asynchronous write protection: {error.strerror}") from None
    return fd


def open_write_watch(start: int, length_bytes: int) -> tuple[str, tuple[int, int]]:
    """Return (SCAN or SOFT_DIRTY, (pagemap, userfaultfd or clear_refs)); the caller closes both.

    Raises OSError if the process is not allowed to open its own files in /proc.
    """
    pagemap_fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            return SCAN, (pagemap_fd, protect_writes(start, length_bytes))
        except OSError:
            clear_refs_fd = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
            return SOFT_DIRTY, (pagemap_fd, clear_refs_fd)
    except BaseException:
        os.close(pagemap_fd)
        raise


def offer_writes(native: Native, client: Client) -> None:
    """Send the daemon the descriptors through which it can track writes to the heap. Raises OSError
    if they cannot be sent."""
    heap = (native.word(HEAP_BASE_OFFSET), native.word(HEAP_BYTES_OFFSET))
    try:
        way, fds = open_write_watch(*heap)
    except OSError as error:
        client.send({"type": "writes", "way": "", "error": str(error)})
        return
    try:
        client.send({"type": "writes", "way": way}, fds)
    finally:
        # Close this process's copies, so that only the daemon has the descriptors. The write
        # protection then ends when the daemon closes its copies or exits.
        for fd in fds:
            os.close(fd)
