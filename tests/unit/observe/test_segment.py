# SPDX-License-Identifier: Apache-2.0
"""Shared memory of an untrusted process: only a file that can't shrink is mapped."""

from __future__ import annotations

import fcntl
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.model import protocol
from sentineld.observe.segment import map_segment, mismatch, require_header

PAGE = 4096


def sealed(size: int, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    fd = os.memfd_create("segment", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def refusal(fd: int) -> str:
    """The reason why map_segment() refuses a file as a segment of one or two pages."""
    try:
        with pytest.raises(SentinelError) as error:
            map_segment(fd, "control", PAGE, 2 * PAGE)
    finally:
        os.close(fd)
    assert error.value.code == "protocol-mismatch"
    assert "control segment" in error.value.message
    return error.value.message


def test_both_sides_see_each_others_writes() -> None:
    fd = sealed(PAGE)
    with map_segment(fd, "control", PAGE, 2 * PAGE) as mapped:
        mapped[7] = 9
        assert os.pread(fd, 1, 7) == b"\x09"
        os.pwrite(fd, b"\x05", 8)
        assert mapped[8] == 5
        os.close(fd)
        assert mapped[7] == 9


@given(st.integers(0, 4 * PAGE))
def test_only_sizes_within_the_limits_are_mapped(size: int) -> None:
    fd = sealed(size)
    if PAGE <= size <= 2 * PAGE:
        with map_segment(fd, "control", PAGE, 2 * PAGE) as mapped:
            assert len(mapped) == size
        os.close(fd)
    else:
        assert f"its size is {size} bytes" in refusal(fd)


def test_a_segment_that_can_shrink_is_refused() -> None:
    assert "sealed against shrinking" in refusal(sealed(PAGE, fcntl.F_SEAL_GROW))


def test_a_segment_that_cannot_be_written_is_refused() -> None:
    refusal(sealed(PAGE, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE))


def test_huge_pages_of_hugetlbfs_are_refused() -> None:
    fd = os.memfd_create("segment", os.MFD_ALLOW_SEALING | 4)  # MFD_HUGETLB
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    assert "hugetlbfs" in refusal(fd)


def test_other_descriptors_are_refused() -> None:
    refusal(os.open("/dev/null", os.O_RDWR))
    read_end, write_end = os.pipe()
    os.close(write_end)
    refusal(read_end)


@pytest.mark.parametrize(
    ("magic", "version", "why"),
    [
        (protocol.CONTROL_MAGIC, protocol.SHIM_VERSION, ""),
        (protocol.LAYOUT_MAGIC, protocol.SHIM_VERSION, "another magic number"),
        (protocol.CONTROL_MAGIC, 99, f"its version is 99, not {protocol.SHIM_VERSION}"),
    ],
)
def test_a_header_of_another_protocol_is_refused(magic: int, version: int, why: str) -> None:
    header = np.zeros(1, protocol.CONTROL_DTYPE)
    header["magic"], header["version"] = magic, version
    if not why:
        require_header(header[0], "control", protocol.CONTROL_MAGIC)
        return
    with pytest.raises(SentinelError, match=why):
        require_header(header[0], "control", protocol.CONTROL_MAGIC)


def test_the_error_names_the_segment_and_the_way_out() -> None:
    error = mismatch("residency", "it is empty")
    assert str(error).startswith("the process's residency segment can't be used: it is empty (")
