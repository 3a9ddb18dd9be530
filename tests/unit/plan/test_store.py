# SPDX-License-Identifier: Apache-2.0
"""Saving plans to files, and loading plans from files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.plan.store import load_plan, save_plan
from sentineld.policies.registry import policy
from tests.unit.plan.toys import PAGE, large_profile, late_plan, toy_plan, toy_profile, two_tiers


def test_plan_and_profile_survive_saving_and_loading(tmp_path: Path) -> None:
    profile = toy_profile()
    plan = policy("sentinel").plan(profile, two_tiers(), 8 * PAGE)
    charged = large_profile()
    save_plan(tmp_path / "1-2.npz", plan, profile, charged)
    again, same, second = load_plan(tmp_path / "1-2.npz")
    for one, other in (
        (plan, again),
        (plan.layout, again.layout),
        (profile, same),
        (charged, second),
    ):
        for name in one.__dataclass_fields__:
            left, right = getattr(one, name), getattr(other, name)
            if isinstance(left, np.ndarray):
                assert left.dtype == right.dtype
                assert np.array_equal(left, right)
            elif name != "layout":
                assert left == right
    assert [path.name for path in tmp_path.iterdir()] == ["1-2.npz"]


def test_a_second_profile_is_saved_only_if_there_is_one(tmp_path: Path) -> None:
    profile, sizes = toy_profile(), []
    for charged in (None, profile, replace(profile, tensors=profile.tensors.copy())):
        save_plan(tmp_path / "it.npz", toy_plan(), profile, charged)
        stored = load_plan(tmp_path / "it.npz")
        assert (stored.charged is stored.profile) == (charged is None or charged is profile)
        sizes.append((tmp_path / "it.npz").stat().st_size)
    assert sizes[0] == sizes[1] < sizes[2]


def test_marks_of_late_moves_survive(tmp_path: Path) -> None:
    plan = late_plan(toy_plan())
    save_plan(tmp_path / "it.npz", plan, toy_profile())
    assert load_plan(tmp_path / "it.npz")[0].late.tolist() == plan.late.tolist() == [False, True]


def test_damaged_and_missing_files_raise_different_errors(tmp_path: Path) -> None:
    path = tmp_path / "plan.npz"
    with pytest.raises(FileNotFoundError):
        load_plan(path)
    save_plan(path, toy_plan(), toy_profile())
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(SentinelError, match="holds no valid plan"):
        load_plan(path)
    np.savez(path, version=np.array(99))
    with pytest.raises(SentinelError, match="version 99"):
        load_plan(path)


def test_any_damaged_byte_is_an_error_of_the_file_or_changes_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "plan.npz"
    save_plan(path, toy_plan(), toy_profile())
    data = path.read_bytes()
    damaged = 0
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        try:
            load_plan(path)
        except SentinelError:
            damaged += 1
    assert damaged > len(data) // 14
    path.write_bytes(b"")
    with pytest.raises(SentinelError, match="holds no valid plan"):
        load_plan(path)
