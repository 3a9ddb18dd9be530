# SPDX-License-Identifier: Apache-2.0
"""The BTF reader, on data built according to Documentation/bpf/btf.rst."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.observe.btf import VMLINUX, Btf
from tests.unit.observe.btf_types import kernel


def test_fields_of_anonymous_structures_are_found() -> None:
    btf = Btf(kernel().data())
    assert btf.offset("mm_struct", "owner") == 936
    assert btf.offset("folio", "_nr_pages", "_folio_nr_pages") == 96
    assert btf.offset("vm_fault", "address") == 24
    assert btf.offset("folio", "_nr_pages") is None
    assert btf.offset("rmap_walk_arg", "folio") is None


def test_functions_and_constants_are_found_by_name() -> None:
    writer = kernel()
    number = writer.function("do_swap_page", "vmf")
    btf = Btf(writer.data())
    assert btf.function("do_swap_page") == number
    assert btf.parameters("do_swap_page") == 1
    assert btf.parameters("do_swap") == -1
    assert btf.constant("pageflags", "PG_head") == 6
    assert btf.constant("pageflags", "PG_tail") is None


@pytest.mark.parametrize(
    "data", [b"", b"\x9f\xeb", b"ELF" * 20, kernel().data()[:100], b"\x9f\xeb" + b"\xff" * 22]
)
def test_invalid_data_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="BTF"):
        Btf(data)


@pytest.mark.skipif(not VMLINUX.exists(), reason="this kernel has no BTF")
def test_the_running_kernel_s_btf_is_read() -> None:
    btf = Btf(Path(VMLINUX).read_bytes())
    assert btf.offset("list_head", "prev") == 8
    assert btf.parameters("handle_mm_fault") == 4
