# SPDX-License-Identifier: Apache-2.0
"""The QEMU plugin and the host use the same layout of the shared counter file."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from tests.demo import counter
from tests.demo.prices import Prices

SOURCE = Path(counter.__file__).with_name("plugin")


def test_the_ctypes_layout_equals_the_plugins(tmp_path: Path) -> None:
    lines = ['#include "counter.c"']
    for structure, name in (
        (counter.Range, "range"),
        (counter.Counts, "counts"),
        (counter.PriceList, "prices"),
        (counter.Shared, "shared"),
    ):
        size = ctypes.sizeof(structure)
        lines.append(f'_Static_assert(sizeof(struct {name}) == {size}, "{name}");')
        for field, *_ in structure._fields_:
            offset = getattr(structure, field).offset
            lines.append(
                f'_Static_assert(offsetof(struct {name}, {field}) == {offset}, "{name}.{field}");'
            )
    probe = tmp_path / "probe.c"
    probe.write_text("\n".join(lines) + "\n")
    subprocess.run(
        ["cc", "-std=gnu17", "-fsyntax-only", f"-I{SOURCE}", str(probe)], check=True, text=True
    )


def test_the_plugin_builds_and_exports_the_symbols_qemu_needs(tmp_path: Path) -> None:
    built = counter.build(tmp_path / "counter.so")
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", str(built)], check=True, capture_output=True, text=True
    ).stdout.split()
    assert {"qemu_plugin_install", "qemu_plugin_version"} <= set(symbols)


def test_fast_shares_follow_from_the_counts() -> None:
    count = counter.Count(
        misses={"tensors": [30, 10], "user_other": [5, 0], "kernel": [5, 0]},
        elsewhere=0,
        grains={},
    )
    assert count.fast_share("tensors") == 0.75
    assert count.machine_fast_share == 0.8
    assert count.tensor_part == 0.8
    empty = counter.Count({"tensors": [0, 0]}, 0, {})
    assert empty.fast_share("tensors") is None
    assert empty.machine_fast_share is None


def test_an_unresponsive_plugin_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counter, "SWITCH_SECONDS", 0.05)
    silent = counter.Counter(tmp_path / "counts", [(0, 1 << 30)], Prices(1, (2,), (3,)))
    with pytest.raises(TimeoutError, match="did not react"):
        silent.start([])


def test_the_shared_file_holds_the_layout_and_can_be_a_devices_memory(tmp_path: Path) -> None:
    counter.Counter(tmp_path / "counts", [(0, 1), (1, 2)], Prices(1, (2, 3), (4, 5)))
    size_bytes = (tmp_path / "counts").stat().st_size
    assert ctypes.sizeof(counter.Shared) <= size_bytes
    assert size_bytes & (size_bytes - 1) == 0
    shared = counter.Shared.from_buffer_copy((tmp_path / "counts").read_bytes())
    assert list(shared.prices.load_ps[:2]) == [2, 3]
    assert list(shared.prices.store_ps[:2]) == [4, 5]
    assert counter.Shared.now_ps.offset == 0
