# SPDX-License-Identifier: Apache-2.0
"""Opens and uses a userfaultfd, and checks that this process can move page frames with it
(UFFDIO_MOVE, Linux 6.8)."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from sentineld.base.errors import SentinelError

DEVICE = Path("/dev/userfaultfd")
UDEV_RULE = 'KERNEL=="userfaultfd", GROUP="sentineld", MODE="0660"'
"""The line of RULE_FILE. It lets members of the group sentineld open DEVICE."""
RULE_FILE = Path("/etc/udev/rules.d/70-sentineld.rules")

# include/uapi/linux/userfaultfd.h
_USERFAULTFD_IOC_NEW = 0xAA00
_UFFDIO_API = 0xC018AA3F
_UFFD_API = 0xAA
_FEATURE_MOVE = 1 << 16
_UFFDIO_REGISTER = 0xC020AA00
_REGISTER_MODE_MISSING = 1
_UFFDIO_COPY = 0xC028AA03
_MESSAGE_BYTES = 32
_ADDRESS_OFFSET = 16


def open_userfaultfd(device_path: Path = DEVICE) -> int:
    """Open a userfaultfd that can move pages, and return its non-blocking descriptor.

    Raises SentinelError, with a hint.
    """
    try:
        device = os.open(device_path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise SentinelError(
            "no-second-tier", f"this kernel has no {DEVICE}", "use Linux 6.8 or later"
        ) from None
    except OSError as error:
        raise SentinelError(
            "not-permitted",
            f"{DEVICE} cannot be opened: {os.strerror(error.errno or 0)}",
            f"write this udev rule to {RULE_FILE}, run udevadm trigger {DEVICE}, and join the "
            f"group: {UDEV_RULE}",
        ) from None
    try:
        # poll() reports an error for a userfaultfd without O_NONBLOCK.
        descriptor = fcntl.ioctl(device, _USERFAULTFD_IOC_NEW, os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SentinelError(
            "no-second-tier",
            f"{DEVICE} gives no userfaultfd: {os.strerror(error.errno or 0)}",
            "raise the limit of open files if it is reached; seccomp can forbid the call, too",
        ) from None
    finally:
        os.close(device)
    try:
        fcntl.ioctl(descriptor, _UFFDIO_API, struct.pack("QQQ", _UFFD_API, _FEATURE_MOVE, 0))
    except OSError:
        os.close(descriptor)
        raise SentinelError(
            "no-second-tier",
            "this kernel's userfaultfd cannot move pages",
            "use Linux 6.8 or later",
        ) from None
    return descriptor


def require_move(device_path: Path = DEVICE) -> None:
    """Raise SentinelError, with a hint, if this process cannot use UFFDIO_MOVE."""
    os.close(open_userfaultfd(device_path))


def register(descriptor: int, address: int, size_bytes: int) -> None:
    """Make the userfaultfd report each access to an absent page of the range. Raises OSError."""
    range_and_mode = (address, size_bytes, _REGISTER_MODE_MISSING, 0)
    fcntl.ioctl(descriptor, _UFFDIO_REGISTER, struct.pack("QQQQ", *range_and_mode))


def next_fault(descriptor: int) -> int | None:
    """The address of the next fault, or None if there is none. Raises OSError."""
    try:
        message = os.read(descriptor, _MESSAGE_BYTES)
    except BlockingIOError:
        return None
    address: int = struct.unpack_from("Q", message, _ADDRESS_OFFSET)[0]
    return address


def copy_pages(descriptor: int, to: int, source: int, size_bytes: int) -> bool:
    """Create pages with the content at `source`, and wake the threads that wait for them. Returns
    False if the first page already exists. Raises OSError."""
    try:
        fcntl.ioctl(descriptor, _UFFDIO_COPY, struct.pack("QQQQq", to, source, size_bytes, 0, 0))
    except FileExistsError:
        return False
    return True
