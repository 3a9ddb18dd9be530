# SPDX-License-Identifier: Apache-2.0
"""Attribution of samples and operator accesses to tensors."""

from __future__ import annotations

import time
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.model.protocol import Alloc, Boundary, Event
from sentineld.model.records import (
    ACCESS_AGAIN,
    ACCESS_RESIDENCY,
    ACCESS_WRITE,
    OP_ACCESS_DTYPE,
    SAMPLE_DTYPE,
)
from sentineld.profile import attribution
from sentineld.profile.attribution import build_profile
from sentineld.profile.coverage import coverage
from sentineld.profile.steps import LiveTensor, Step, StepCutter
from tests.unit.profile.attributed import NO_OPS, NO_SAMPLES, ring, rows, samples, two_stretches
from tests.unit.trainer import PAGE, Trainer
from tests.unit.workloads import Network, train


def test_pages_are_attributed_by_stretch() -> None:
    seen = samples(
        (16, 5, ACCESS_WRITE), (17, 5, 0), (16, 6, 0), (19, 6, 0), (17, 6, 0), (30, 5, 0)
    )
    profile = build_profile(two_stretches(), seen, NO_OPS, [""])
    # Columns: stretch, tensor, bytes read, bytes written, pages. No tensor lives on page 17 in
    # stretch 1 or on page 30 (see the drawing in two_stretches(), attributed.py).
    assert rows(profile) == [
        (0, 0, PAGE, PAGE, 2),
        (1, 1, PAGE, 0, 1),
        (1, 2, PAGE, 0, 1),
    ]
    assert profile.unattributed_pages == 2
    assert profile.source == "module"
    assert coverage(profile).attributed_share == pytest.approx(4 / 6)


def test_samples_of_other_epochs_and_residency_are_ignored() -> None:
    seen = samples((16, 4, 0), (16, 7, 0), (16, 5, ACCESS_RESIDENCY))
    profile = build_profile(two_stretches(), seen, NO_OPS, [""])
    assert rows(profile) == []
    assert profile.unattributed_pages == 0


def test_a_huge_page_s_record_represents_all_its_pages() -> None:
    seen = samples((16, 5, ACCESS_WRITE), (18, 6, 0))
    seen["more_pages"] = [3, 1]  # pages 16 to 19 in stretch 0, 18 and 19 in stretch 1
    profile = build_profile(two_stretches(), seen, NO_OPS, [""])
    assert rows(profile) == [
        (0, 0, 0, 2 * PAGE, 2),
        (0, 1, 0, 2 * PAGE, 2),
        (1, 1, 2 * PAGE, 0, 2),
    ]
    assert profile.unattributed_pages == 0


def test_accesses_are_counted_per_period() -> None:
    seen = samples(
        (16, 5, 0),
        (16, 5, ACCESS_AGAIN),
        (16, 5, ACCESS_AGAIN | ACCESS_WRITE),
        (17, 5, 0),
        (18, 5, 0),
        (19, 6, 0),
        (19, 6, ACCESS_AGAIN),
    )
    profile = build_profile(two_stretches(), seen, NO_OPS, [""])
    assert rows(profile) == [
        (0, 0, PAGE, PAGE, 2),
        (0, 1, PAGE, 0, 1),
        (1, 1, PAGE, 0, 1),
    ]
    assert profile.accesses["page_accesses"].tolist() == [4, 1, 2]


def test_two_tensors_on_a_page_in_one_stretch_share_by_bytes() -> None:
    # stretch 0: A occupies page 16 and a quarter of 17, and dies; then B occupies page 17.
    step = Step(
        ring(
            (Event.STEP, 5, 1, 0),
            (Event.ALLOC, 16 * PAGE, PAGE + PAGE // 4, 0),
            (Event.FREE, 16 * PAGE, PAGE + PAGE // 4, 0),
            (Event.ALLOC, 17 * PAGE, PAGE, 1),
            (Event.FREE, 17 * PAGE, PAGE, 1),
        ),
        1,
        200,
        6,
        {},
    )
    profile = build_profile(step, samples((16, 5, 0), (17, 5, 0)), NO_OPS, [""])
    # One fifth of page 17's access goes to A, four fifths to B. Counts are rounded to whole pages.
    assert rows(profile) == [(0, 0, round(PAGE * 1.2), 0, 1), (0, 1, round(PAGE * 0.8), 0, 1)]


def test_operator_accesses_are_attributed_by_time() -> None:
    # A and C of two_stretches() lie on page 16: A lives from 120 to 140 ns in stretch 0, C from 160
    # to 170 ns in stretch 1. (There is one record every 10 ns, see ring().)
    ops = np.array(
        [
            (125, 16 * PAGE, 100, False, False),
            (135, 16 * PAGE + 64, 50, True, False),
            (165, 16 * PAGE, 30, True, False),
            (165, 40 * PAGE, 30, True, False),  # no tensor
            (205, 16 * PAGE, 30, True, False),  # after the step
        ],
        OP_ACCESS_DTYPE,
    )
    profile = build_profile(two_stretches(), NO_SAMPLES, ops, [""])
    assert rows(profile) == [(0, 0, 100, 50, 0), (1, 2, 0, 30, 0)]
    assert profile.source == "shim"


def test_an_output_allocated_within_its_operator_is_found() -> None:
    # The operator begins at 115 ns; its output is allocated at 120 ns.
    ops = np.array([(115, 16 * PAGE, 100, True, False)], OP_ACCESS_DTYPE)
    assert rows(build_profile(two_stretches(), NO_SAMPLES, ops, [""])) == [(0, 0, 0, 100, 0)]


def test_bytes_are_the_frameworks_and_pages_the_modules() -> None:
    ops = np.array([(125, 16 * PAGE, 100, False, False)], OP_ACCESS_DTYPE)
    seen = samples((16, 5, 0), (17, 5, 0), (18, 5, 0))
    profile = build_profile(two_stretches(), seen, ops, [""])
    assert rows(profile) == [(0, 0, 100, 0, 2), (0, 1, PAGE, 0, 1)]
    assert profile.source == "module+shim"


def test_samples_without_epochs_are_refused() -> None:
    step = two_stretches()
    step.records["address"][step.records["event"] == Event.BOUNDARY] = 0
    step.records["address"][0] = 0
    with pytest.raises(SentinelError, match="boundaries without an epoch"):
        build_profile(step, samples((16, 5, 0)), NO_OPS, [""])


def test_a_tensor_across_the_step_s_end_is_one_row() -> None:
    trainer = Trainer()
    kept = None
    for number in range(3):
        if number == 2:
            trainer.take_samples()
        trainer.begin_step()
        if kept is not None:
            trainer.touch([kept], [])
            trainer.free(kept)
        other = trainer.alloc(PAGE)
        trainer.boundary(Boundary.FORWARD, "a")
        kept = trainer.alloc(2 * PAGE)
        trainer.touch([], [kept])
        trainer.free(other)
    trainer.finish()
    step = StepCutter().feed(trainer.take_records())[-1]
    profile = build_profile(step, trainer.take_samples(), NO_OPS, trainer.layers)
    assert rows(profile) == [(0, 1, 2 * PAGE, 0, 2), (1, 1, 0, 2 * PAGE, 2)]
    assert profile.unattributed_pages == 0


def test_every_sample_of_a_training_step_is_attributed() -> None:
    trainer = train(Network(blocks=3, weight_bytes=8 * PAGE, activation_bytes=16 * PAGE), 4)
    step = StepCutter().feed(trainer.take_records())[-1]
    seen, ops = trainer.take_samples(), trainer.take_ops()
    profile = build_profile(step, seen, ops, trainer.layers)
    pairs = {(int(row["page"]), int(row["epoch"])) for row in seen}
    assert profile.unattributed_pages == 0
    assert int(profile.accesses["pages"].sum()) == pytest.approx(len(pairs), rel=0.02)
    read = int(profile.accesses["bytes_read"].sum())
    assert read == int(ops["bytes"][~ops["write"]].sum())


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """(first page, pages, birth, death) of tensors that never overlap. A birth or death is
    the index of a stretch, 0 to 5."""
    found: list[tuple[int, int, int, int]] = []
    for _ in range(draw(st.integers(1, 8))):
        page, size = draw(st.integers(1, 10)), draw(st.integers(1, 3))
        birth = draw(st.integers(0, 5))
        death = draw(st.integers(birth, 5))
        overlaps = any(
            page < p + s and p < page + size and birth <= d and b <= death for p, s, b, d in found
        )
        if not overlaps:
            found.append((page, size, birth, death))
    return sorted(found, key=lambda life: life[2])


@given(lives(), st.lists(st.tuples(st.integers(0, 13), st.integers(0, 5)), max_size=40))
def test_attribution_agrees_with_counting(
    found: list[tuple[int, int, int, int]], hits: list[tuple[int, int]]
) -> None:
    entries: list[tuple[Event, int, int, int]] = [(Event.STEP, 10, 1, 0)]
    for stretch in range(6):
        entries.append((Event.BOUNDARY, 10 + stretch, 0, stretch))
        for slot, (page, size, birth, _) in enumerate(found):
            if birth == stretch:
                entries.append((Event.ALLOC, page * PAGE, size * PAGE, slot))
        for slot, (page, size, _, death) in enumerate(found):
            if death == stretch:
                entries.append((Event.FREE, page * PAGE, size * PAGE, slot))
    step = Step(ring(*entries), 1, 10_000, 16, {})
    seen = samples(*((page, 10 + stretch, 0) for page, stretch in hits))
    profile = build_profile(step, seen, NO_OPS, [""])
    expected: defaultdict[tuple[int, int], int] = defaultdict(int)
    unattributed = 0
    for page, stretch in set(hits):
        tenants = [
            slot
            for slot, (p, s, birth, death) in enumerate(found)
            if p <= page < p + s and birth <= stretch <= death
        ]
        unattributed += not tenants
        for slot in tenants:
            expected[stretch, slot] += 1
    assert {(r[0], r[1]): r[4] for r in rows(profile)} == dict(expected)
    assert profile.unattributed_pages == unattributed


@pytest.mark.parametrize("lives", [1, 7, 100])
def test_attribution_in_pieces_is_the_same(lives: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = train(Network(blocks=3, weight_bytes=8 * PAGE, activation_bytes=16 * PAGE), 4)
    step = StepCutter().feed(trainer.take_records())[-1]
    seen, ops = trainer.take_samples(), trainer.take_ops()
    seen["page"][::7] += 1000
    whole = build_profile(step, seen, ops, trainer.layers)
    monkeypatch.setattr(attribution, "LIVES_MAX", lives)
    pieces = build_profile(step, seen, ops, trainer.layers)
    assert np.array_equal(whole.accesses, pieces.accesses)
    assert whole.unattributed_pages == pieces.unattributed_pages > 0


def test_half_a_million_samples() -> None:
    # 3,000 tensors of 64 pages, 150 stretches. The time is printed, not asserted.
    count, stretches = 3000, 150
    entries = [(Event.STEP, 1, 1, 0)]
    per_stretch = count // stretches
    for stretch in range(stretches):
        entries.append((Event.BOUNDARY, 1 + stretch, 0, stretch))
        entries += [
            (Event.ALLOC, (slot + 1) * 64 * PAGE, 64 * PAGE, slot)
            for slot in range(stretch * per_stretch, (stretch + 1) * per_stretch)
        ]
    step = Step(ring(*entries), 1, 10**9, 1 + stretches, {1 << 45: LiveTensor(PAGE, None, 2)})
    random = np.random.default_rng(3)
    seen = np.zeros(500_000, SAMPLE_DTYPE)
    seen["page"] = random.integers(0, (count + 1) * 64, len(seen))
    seen["epoch"] = random.integers(1, 1 + stretches, len(seen))
    begin = time.process_time()
    profile = build_profile(step, seen, NO_OPS, [""])
    print(f"{time.process_time() - begin:.2f} s for {len(seen)} samples")
    unique = len({*zip(seen["page"].tolist(), seen["epoch"].tolist(), strict=True)})
    assert int(profile.accesses["pages"].sum()) + profile.unattributed_pages == unique
    assert step.records["detail"].max() == Alloc.STEP
