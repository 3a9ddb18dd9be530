# SPDX-License-Identifier: Apache-2.0
"""The commands of the bpf() system call that the daemon and ebpf_loader.py issue without bcc.

A process that holds the fds of maps and programs can read and write the maps, and attach the
programs, without bcc or libbpf: it calls bpf() with the union bpf_attr of linux/bpf.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from typing import Any

import numpy as np
import numpy.typing as npt

_SYSCALL_NUMBER = {"x86_64": 321, "aarch64": 280}

_MAP_LOOKUP_ELEM = 1
_MAP_UPDATE_ELEM = 2
_MAP_DELETE_ELEM = 3
_PROG_LOAD = 5
_OBJ_GET_INFO_BY_FD = 15
_RAW_TRACEPOINT_OPEN = 17
_MAP_LOOKUP_BATCH = 24

_PROG_TYPE_RAW_TRACEPOINT = 17
_PROG_TYPE_TRACING = 26
_TRACE_FENTRY = 24
_TRACE_FEXIT = 25

_libc = ctypes.CDLL(None, use_errno=True)


class _ElementAttr(ctypes.Structure):
    _fields_ = (
        ("map_fd", ctypes.c_uint32),
        ("key", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )


class _BatchAttr(ctypes.Structure):
    _fields_ = (
        ("in_batch", ctypes.c_uint64),
        ("out_batch", ctypes.c_uint64),
        ("keys", ctypes.c_uint64),
        ("values", ctypes.c_uint64),
        ("count", ctypes.c_uint32),
        ("map_fd", ctypes.c_uint32),
        ("elem_flags", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )


class _ProgramAttr(ctypes.Structure):
    _fields_ = (
        ("prog_type", ctypes.c_uint32),
        ("insn_cnt", ctypes.c_uint32),
        ("insns", ctypes.c_uint64),
        ("license", ctypes.c_uint64),
        ("log_level", ctypes.c_uint32),
        ("log_size", ctypes.c_uint32),
        ("log_buf", ctypes.c_uint64),
        ("kern_version", ctypes.c_uint32),
        ("prog_flags", ctypes.c_uint32),
        ("prog_name", ctypes.c_char * 16),
        ("prog_ifindex", ctypes.c_uint32),
        ("expected_attach_type", ctypes.c_uint32),
        ("prog_btf_fd", ctypes.c_uint32),
        ("func_info_rec_size", ctypes.c_uint32),
        ("func_info", ctypes.c_uint64),
        ("func_info_cnt", ctypes.c_uint32),
        ("line_info_rec_size", ctypes.c_uint32),
        ("line_info", ctypes.c_uint64),
        ("line_info_cnt", ctypes.c_uint32),
        ("attach_btf_id", ctypes.c_uint32),
    )


class _RawTracepointAttr(ctypes.Structure):
    _fields_ = (("name", ctypes.c_uint64), ("prog_fd", ctypes.c_uint32))


class _InfoAttr(ctypes.Structure):
    _fields_ = (
        ("bpf_fd", ctypes.c_uint32),
        ("info_len", ctypes.c_uint32),
        ("info", ctypes.c_uint64),
    )


class _MapInfo(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("key_size", ctypes.c_uint32),
        ("value_size", ctypes.c_uint32),
        ("max_entries", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
    )


def _bpf(command: int, attr: ctypes.Structure) -> int:
    """Call bpf(); if it fails, raise OSError with the kernel's errno."""
    number = _SYSCALL_NUMBER[platform.machine()]
    result = int(_libc.syscall(number, command, ctypes.byref(attr), ctypes.sizeof(attr)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def check_permitted() -> None:
    """Check that this process may load tracing programs: load one that does nothing.

    Raises OSError (EPERM) if CAP_BPF or CAP_PERFMON is missing. This check takes microseconds.
    Without it, the error would come only after bcc's compilation, which takes seconds.
    """
    # r0 = 0; exit
    instructions = ctypes.create_string_buffer(bytes([0xB7] + [0] * 7 + [0x95] + [0] * 7), 16)
    licence = ctypes.create_string_buffer(b"GPL")
    attr = _ProgramAttr(
        prog_type=_PROG_TYPE_RAW_TRACEPOINT,
        insn_cnt=2,
        insns=ctypes.addressof(instructions),
        license=ctypes.addressof(licence),
    )
    os.close(_bpf(_PROG_LOAD, attr))


def load_traced(instructions: bytes, function_id: int, returns: bool) -> int:
    """Load a program that runs at the entry or at the return of a kernel function.

    Returns the program's fd.

    instructions: the program's bytecode.
    function_id: the function's type id in the kernel's BTF.
    returns: True to run at the function's return (fexit), False to run at its entry (fentry).

    Raises OSError. EINVAL can mean an invalid program or a function that the kernel can't trace.
    """
    code = ctypes.create_string_buffer(instructions, len(instructions))
    licence = ctypes.create_string_buffer(b"GPL")
    attr = _ProgramAttr(
        prog_type=_PROG_TYPE_TRACING,
        insn_cnt=len(instructions) // 8,
        insns=ctypes.addressof(code),
        license=ctypes.addressof(licence),
        expected_attach_type=_TRACE_FEXIT if returns else _TRACE_FENTRY,
        attach_btf_id=function_id,
    )
    return _bpf(_PROG_LOAD, attr)


def attach_traced(program_fd: int) -> int:
    """Attach a program loaded by load_traced(); it runs until the returned link fd is closed."""
    return _bpf(_RAW_TRACEPOINT_OPEN, _RawTracepointAttr(name=0, prog_fd=program_fd))


def attach_raw_tracepoint(name: str, program_fd: int) -> int:
    """Attach a program to a raw tracepoint; it runs until the returned link fd is closed.

    Raises OSError: ENOENT if the kernel has no tracepoint of that name.
    A link to a module's tracepoint keeps the module from being unloaded.
    """
    text = ctypes.create_string_buffer(name.encode())
    attr = _RawTracepointAttr(name=ctypes.addressof(text), prog_fd=program_fd)
    return _bpf(_RAW_TRACEPOINT_OPEN, attr)


class BpfMap:
    """Reads and writes a map that another process created. Keys and values are numpy values.

    Owns the fd. Methods raise OSError if the kernel refuses the call.
    """

    def __init__(self, fd: int, key: npt.DTypeLike, value: npt.DTypeLike) -> None:
        self.fd = fd
        self._key: np.dtype[Any] = np.dtype(key)
        self._value: np.dtype[Any] = np.dtype(value)
        info = map_info(fd)
        self.max_entries = info.max_entries
        sizes = (info.key_size, info.value_size)
        if sizes != (self._key.itemsize, self._value.itemsize):
            raise ValueError(
                f"the map has keys and values of {sizes} bytes,"
                f" not {(self._key.itemsize, self._value.itemsize)}"
            )

    def lookup(self, key: object) -> npt.NDArray[Any] | None:
        """The value of a key as an array of one row, or None if the key is absent."""
        key_row = np.array([key], dtype=self._key)
        value_row = np.zeros(1, dtype=self._value)
        attr = _ElementAttr(map_fd=self.fd, key=key_row.ctypes.data, value=value_row.ctypes.data)
        try:
            _bpf(_MAP_LOOKUP_ELEM, attr)
        except FileNotFoundError:
            return None
        return value_row

    def update(self, key: object, value: npt.NDArray[Any]) -> None:
        """Set a key's value from an array of one row. Raises OSError E2BIG if the map is full."""
        key_row = np.array([key], dtype=self._key)
        value_row = np.ascontiguousarray(value, dtype=self._value)
        attr = _ElementAttr(map_fd=self.fd, key=key_row.ctypes.data, value=value_row.ctypes.data)
        _bpf(_MAP_UPDATE_ELEM, attr)

    def delete(self, key: object) -> bool:
        """Remove a key; False if it was absent."""
        key_row = np.array([key], dtype=self._key)
        try:
            _bpf(_MAP_DELETE_ELEM, _ElementAttr(map_fd=self.fd, key=key_row.ctypes.data))
        except FileNotFoundError:
            return False
        return True

    def items(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """All keys and all values, in one system call."""
        keys = np.zeros(self.max_entries, dtype=self._key)
        values = np.zeros(self.max_entries, dtype=self._value)
        position = ctypes.c_uint64()
        attr = _BatchAttr(
            out_batch=ctypes.addressof(position),
            keys=keys.ctypes.data,
            values=values.ctypes.data,
            count=self.max_entries,
            map_fd=self.fd,
        )
        try:
            _bpf(_MAP_LOOKUP_BATCH, attr)
        except OSError as error:
            # ENOENT: the batch reached the end of the map
            if error.errno != errno.ENOENT:
                raise
        return keys[: attr.count], values[: attr.count]

    def close(self) -> None:
        """Close the fd; the kernel keeps the map while a program uses it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def map_info(fd: int) -> _MapInfo:
    """Sizes of a map's keys and values in bytes, and its maximum number of entries."""
    info = _MapInfo()
    attr = _InfoAttr(bpf_fd=fd, info_len=ctypes.sizeof(info), info=ctypes.addressof(info))
    _bpf(_OBJ_GET_INFO_BY_FD, attr)
    return info
