# SPDX-License-Identifier: Apache-2.0
"""The kernel's proc connector: forks and execs of all processes, over netlink.

pyroute2 opens the socket and subscribes. The kernel filters the events, and this module decodes
them. pyroute2 0.9 would take more than 100 us to decode an event, so any user could keep the daemon
busy by starting processes. include/uapi/linux/cn_proc.h defines the layout of the events.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import select
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

FORK, EXEC = 1, 2
_WHAT = struct.Struct("=I")
_WHAT_OFFSET = 36  # after struct nlmsghdr and struct cn_msg
_FORK = struct.Struct("=QIIII")  # time, parent's thread and process, child's thread and process
_EXEC = struct.Struct("=QII")  # time, thread, process
_DATA_OFFSET = 44  # after `what` and `cpu`
_CHILD_THREAD_OFFSET, _CHILD_PROCESS_OFFSET = 60, 64

_SO_ATTACH_FILTER = 26
_ACCEPT, _DROP = 0xFFFFFFFF, 0
_MESSAGE_BYTES = 256


class Fork(NamedTuple):
    """A process was forked, or the daemon itself started a thread."""

    parent: int
    child: int
    time_ns: int  # CLOCK_MONOTONIC


class Exec(NamedTuple):
    """A process has executed another program."""

    pid: int
    time_ns: int  # CLOCK_MONOTONIC


class EventsLostError(Exception):
    """The kernel dropped events, because the socket's buffer was full."""


class ProcConnector:
    """An open subscription. Needs the initial network and pid namespaces and, before Linux 6.6,
    CAP_NET_ADMIN."""

    def __init__(self) -> None:
        """Open the socket and subscribe. Raises OSError, or ImportError if pyroute2 is missing or
        has no proc connector."""
        from pyroute2.netlink.connector.cn_proc import ProcEventSocket

        source = ProcEventSocket()
        try:
            source.bind()
            source.control(listen=True)
            self._socket = socket.socket(fileno=os.dup(source.fileno()))
        finally:
            with contextlib.suppress(OSError):
                source.close()
        try:
            _attach_filter(self._socket)
        except OSError:
            self._socket.close()
            raise

    def close(self) -> None:
        """End the subscription."""
        self._socket.close()

    def wait(self, wake_fd: int, timeout_s: float | None = None) -> None:
        """Wait until there are events, or wake_fd is readable, or timeout_s is over."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(wake_fd, select.POLLIN)
        poll.poll(None if timeout_s is None else math.ceil(timeout_s * 1000))

    def events(self) -> Iterator[Fork | Exec]:
        """Yields the events that have arrived. Raises OSError.

        If events were lost, raises EventsLostError after the last event.
        """
        lost = False
        while True:
            try:
                message = self._socket.recv(_MESSAGE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                # After this error, the kernel drops events without another error until the buffer
                # is empty (netlink_overrun in net/netlink/af_netlink.c).
                lost = True
                continue
            event = _decode(message)
            if event is not None:
                yield event
        if lost:
            raise EventsLostError


def _decode(message: bytes) -> Fork | Exec | None:
    """Decode a message. Returns None if the message is too short, or if it is an event of another
    kind, which was sent before the filter was attached."""
    with contextlib.suppress(struct.error):
        (what,) = _WHAT.unpack_from(message, _WHAT_OFFSET)
        if what == FORK:
            time_ns, _, parent, _, child = _FORK.unpack_from(message, _DATA_OFFSET)
            return Fork(parent, child, time_ns)
        if what == EXEC:
            time_ns, _, pid = _EXEC.unpack_from(message, _DATA_OFFSET)
            return Exec(pid, time_ns)
    return None


class _Instruction(ctypes.Structure):
    """struct sock_filter of linux/filter.h"""

    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("operand", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    """struct sock_fprog of linux/filter.h"""

    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def _attach_filter(connector: socket.socket) -> None:
    """Have the kernel drop all events except execs, forks of processes, and starts of this
    process's threads.

    ProcessWatcher starts a thread to test the connector: if the event of the thread's start
    arrives, the connector works. Raises OSError.
    """
    load, jump_if_equal, jump_if_same, copy_to_index, leave = 0x20, 0x15, 0x1D, 0x07, 0x06
    # Classic BPF loads words in network byte order.
    fork, execute, this_process = (socket.htonl(value) for value in (FORK, EXEC, os.getpid()))
    instructions = (
        (load, 0, 0, _WHAT_OFFSET),
        (jump_if_equal, 7, 0, execute),
        (jump_if_equal, 0, 5, fork),
        (load, 0, 0, _CHILD_THREAD_OFFSET),
        (copy_to_index, 0, 0, 0),
        (load, 0, 0, _CHILD_PROCESS_OFFSET),
        (jump_if_same, 2, 0, 0),
        (jump_if_equal, 1, 0, this_process),
        (leave, 0, 0, _DROP),
        (leave, 0, 0, _ACCEPT),
    )
    array = (_Instruction * len(instructions))(*(_Instruction(*one) for one in instructions))
    program = _Program(len(instructions), array)
    connector.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(program))
