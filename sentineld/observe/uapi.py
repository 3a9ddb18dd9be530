# SPDX-License-Identifier: Apache-2.0
"""The structures, flags and ioctl numbers of kmod/sentinel_uapi.h, in ctypes.

tests/unit/observe/test_uapi.py compiles the header and compares every
size, offset and number.
"""

from __future__ import annotations

import ctypes

VERSION = 3

FEATURE_SKIP = 1 << 0
FEATURE_BIRTHS = 1 << 1
FEATURE_UNKNOWN = 1 << 2
FEATURE_PRECISE_WRITE = 1 << 3
FEATURE_REARM = 1 << 4
FEATURE_AGE = 1 << 5
FEATURE_HUGE = 1 << 6

ATTACH_PRECISE_WRITE = 1 << 0

REARM_US_MIN = 1000
REARM_US_MAX = 10_000_000

EPOCH_RESIDENCY = 1 << 0

LOG_OFFSET = 4096
LOG_RECORDS_MIN = 4096
LOG_RECORDS_MAX = 1 << 24


class Info(ctypes.Structure):
    """struct sentinel_info."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("features", ctypes.c_uint32),
        ("page_bytes", ctypes.c_uint32),
        ("sessions", ctypes.c_uint32),
        ("reserved", ctypes.c_uint64 * 4),
    )


class Attach(ctypes.Structure):
    """struct sentinel_attach."""

    _fields_ = (
        ("pid", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("log_records", ctypes.c_uint64),
        ("rearm_us", ctypes.c_uint32),
        ("uid", ctypes.c_uint32),
        ("start_ticks", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64 * 2),
    )


class Range(ctypes.Structure):
    """struct sentinel_range."""

    _fields_ = (
        ("start", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("pages_done", ctypes.c_uint64),
        ("pages_skipped", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64 * 2),
    )


class Epoch(ctypes.Structure):
    """struct sentinel_epoch."""

    _fields_ = (
        ("flags", ctypes.c_uint32),
        ("epoch", ctypes.c_uint32),
        ("rearmed_pages", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64 * 2),
    )


class Stats(ctypes.Structure):
    """struct sentinel_stats."""

    _fields_ = (
        ("hits", ctypes.c_uint64),
        ("births", ctypes.c_uint64),
        ("lost", ctypes.c_uint64),
        ("armed_pages", ctypes.c_uint64),
        ("passed_on", ctypes.c_uint64),
        ("unarmed", ctypes.c_uint64),
        ("rearms", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64 * 9),
    )


class EpochFd(ctypes.Structure):
    """struct sentinel_epoch_fd."""

    _fields_ = (("fd", ctypes.c_int32), ("reserved", ctypes.c_uint32 * 3))


class Log(ctypes.Structure):
    """struct sentinel_log: the first page of the mapped log."""

    _fields_ = (
        ("head", ctypes.c_uint64),
        ("tail", ctypes.c_uint64),
        ("lost", ctypes.c_uint64),
        ("records", ctypes.c_uint64),
        ("epoch", ctypes.c_uint32),
        ("record_bytes", ctypes.c_uint32),
    )


_MAGIC = 0xE5
_WRITE, _READ = 1, 2  # _IOC_WRITE and _IOC_READ of asm-generic/ioctl.h


def _ioc(direction: int, number: int, structure: type[ctypes.Structure]) -> int:
    return direction << 30 | ctypes.sizeof(structure) << 16 | _MAGIC << 8 | number


IOC_INFO = _ioc(_READ, 0x00, Info)
IOC_ATTACH = _ioc(_WRITE, 0x01, Attach)
IOC_ADD_RANGE = _ioc(_READ | _WRITE, 0x02, Range)
IOC_REMOVE_RANGE = _ioc(_READ | _WRITE, 0x03, Range)
IOC_ARM = _ioc(_READ | _WRITE, 0x04, Range)
IOC_DISARM = _ioc(_READ | _WRITE, 0x05, Range)
IOC_EPOCH = _ioc(_READ | _WRITE, 0x06, Epoch)
IOC_EPOCH_FD = _ioc(_READ, 0x07, EpochFd)
IOC_STATS = _ioc(_READ, 0x08, Stats)
IOC_AGE = _ioc(_READ | _WRITE, 0x09, Range)
