# SPDX-License-Identifier: Apache-2.0
"""Attribution of samples and operator accesses to tensors."""

from __future__ import annotations

import time
import tracemalloc
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.model.profile import Profile
from sentineld.model.protocol import Alloc, Boundary, Event
from sentineld.model.records import (
    ACCESS_AGAIN,
    ACCESS_RESIDENCY,
    ACCESS_UNKNOWN,
    ACCESS_WRITE,
    OP_ACCESS_DTYPE,
    RECORD_DTYPE,
    SAMPLE_DTYPE,
    Records,
)
from sentineld.plan.items import access_pages
from sentineld.profile import attribution, sampled_pairs
from sentineld.profile.attribution import build_profile
from sentineld.profile.coverage import coverage
from sentineld.profile.steps import LiveTensor, Step, StepCutter
from tests.unit.trainer import PAGE, Trainer
from tests.unit.workloads import Network, train

NO_SAMPLES = np.zeros(0, SAMPLE_DTYPE)
NO_OPS = np.zeros(0, OP_ACCESS_DTYPE)


def samples(*rows: tuple[int, int, int]) -> Records:
    """A table of SAMPLE_DTYPE from (page, epoch, flags)."""
    return np.array([(page, epoch, 0, flags, 0) for page, epoch, flags in rows], SAMPLE_DTYPE)


def rows(profile: Profile) -> list[tuple[int, ...]]:
    """The accesses without the last column, page_accesses."""
    return [row[:5] for row in profile.accesses.tolist()]


def ring(*entries: tuple[Event, int, int, int]) -> Records:
    """Records from (event, address, bytes, value), one every 10 ns."""
    made = np.zeros(len(entries), RECORD_DTYPE)
    for at, (event, address, size, value) in enumerate(entries):
        made[at] = (100 + 10 * at, address, size, value, 0, event, 0)
    return made


def two_stretches() -> Step:
    # page       16      17      18      19     20
    # stretch 0  [A A A A A A A A)               epoch 5   A: slot 0, pages 16-17
    #                            [B B B B)       epoch 5   B: slot 1, page 18 and half of 19
    # stretch 1  [C C C C)       [B B B B)       epoch 6   C: slot 2, page 16, after A's death
    return Step(
        ring(
            (Event.STEP, 5, 1, 0),
            (Event.BOUNDARY, 5, 0, 0),
            (Event.ALLOC, 16 * PAGE, 2 * PAGE, 0),
            (Event.ALLOC, 18 * PAGE, PAGE + PAGE // 2, 1),
            (Event.FREE, 16 * PAGE, 2 * PAGE, 0),
            (Event.BOUNDARY, 6, 2, 1),
            (Event.ALLOC, 16 * PAGE, PAGE, 2),
            (Event.FREE, 16 * PAGE, PAGE, 2),
            (Event.FREE, 18 * PAGE, PAGE + PAGE // 2, 1),
        ),
        number=1,
        end_ns=200,
        end_epoch=7,
        live={},
    )


def test_pages_are_attributed_by_stretch() -> None:
    seen = samples(
        (16, 5, ACCESS_WRITE), (17, 5, 0), (16, 6, 0), (19, 6, 0), (17, 6, 0), (30, 5, 0)
    )
    profile = build_profile(two_stretches(), seen, NO_OPS, [""])
    # Columns: stretch, tensor, bytes read, bytes written, pages. No tensor lives on page 17 in
    # stretch 1 or on page 30.
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


def test_unknown_pages_are_counted_separately() -> None:
    seen = samples(
        (16, 5, 0),
        (18, 5, ACCESS_UNKNOWN),
        (15, 5, ACCESS_UNKNOWN),
        (17, 6, ACCESS_UNKNOWN),
        (17, 6, ACCESS_UNKNOWN),
        (18, 6, 0),
        (40, 9, ACCESS_UNKNOWN),  # of another step
    )
    seen["more_pages"] = [0, 0, 2, 2, 1, 0, 5]
    profile = build_profile(two_stretches(), seen, NO_OPS, [""])
    assert [row[:2] for row in rows(profile)] == [(0, 0), (1, 1)]
    # Unknown in stretch 0: pages 15, 17 and 18 (16 was seen). Unknown in stretch 1: pages 17 and 19
    # (18 was seen).
    assert sampled_pairs.unknown_pairs(two_stretches(), seen) == 5
    assert sampled_pairs.unknown_pairs(two_stretches(), seen[:1]) == 0


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
    # A and C lie on page 16: A lives from 120 to 140 ns in stretch 0, C from 160 to 170 ns in
    # stretch 1.
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


def op(time_ns: int, page: int, size: int) -> Records:
    """A read by an operator."""
    return np.array([(time_ns, page * PAGE, size, False, False)], OP_ACCESS_DTYPE)


@pytest.mark.parametrize(
    ("unknown", "page_count"),
    [
        ((), 0),  # the operator uses only the tensor's shape: both pages were watched
        (((16, 5, ACCESS_UNKNOWN),), 1),
        (((17, 5, ACCESS_UNKNOWN), (16, 5, ACCESS_UNKNOWN)), 2),
        (((18, 5, ACCESS_UNKNOWN), (15, 5, ACCESS_UNKNOWN)), 0),  # pages of no or another tensor
        (((16, 6, ACCESS_UNKNOWN),), 0),  # another stretch
        (((16, 4, ACCESS_UNKNOWN), (16, 7, ACCESS_UNKNOWN)), 0),  # other steps
    ],
)
def test_an_unknown_page_does_not_count_as_not_accessed(
    unknown: tuple[tuple[int, int, int], ...], page_count: int
) -> None:
    # stretch 0: an operator reads A, which occupies pages 16 and 17
    seen = samples((18, 6, 0), *unknown)
    profile = build_profile(two_stretches(), seen, op(125, 16, 2 * PAGE), [""])
    assert rows(profile) == [(0, 0, 2 * PAGE, 0, page_count), (1, 1, PAGE, 0, 1)]
    assert access_pages(profile).tolist() == [page_count, 1]
    assert profile.accesses["page_accesses"].tolist() == [page_count, 1]


def test_unknown_pages_add_to_the_sampled_ones_no_more_than_the_reported_bytes() -> None:
    unknown = ((17, 5, ACCESS_UNKNOWN), (17, 5, ACCESS_UNKNOWN))
    seen = samples((16, 5, 0), (16, 5, ACCESS_AGAIN), *unknown)
    for size, page_count in ((100, 1), (2 * PAGE, 2), (50 * PAGE, 2)):
        profile = build_profile(two_stretches(), seen, op(125, 16, size), [""])
        assert rows(profile) == [(0, 0, size, 0, page_count)]
        assert profile.accesses["page_accesses"].tolist() == [page_count + 1]


def test_a_later_write_that_was_missed_is_not_another_page() -> None:
    seen = samples((16, 5, 0), (16, 5, ACCESS_UNKNOWN | ACCESS_AGAIN))
    profile = build_profile(two_stretches(), seen, op(125, 16, 2 * PAGE), [""])
    assert rows(profile) == [(0, 0, 2 * PAGE, 0, 1)]


def test_if_samples_are_missing_the_reported_bytes_count() -> None:
    seen = samples((17, 5, 0), (18, 6, 0))
    ops = np.concatenate([op(125, 16, 2 * PAGE), op(165, 16, 100)])
    profile = build_profile(two_stretches(), seen, ops, [""], incomplete=True)
    # A in stretch 0, B and C in stretch 1. Only the module saw the access to B.
    assert rows(profile) == [(0, 0, 2 * PAGE, 0, 2), (1, 1, PAGE, 0, 1), (1, 2, 100, 0, 1)]


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


@pytest.mark.parametrize("pages", [1, 40, 1 << 20])
def test_samples_are_attributed_in_parts_of_limited_size(
    pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = train(Network(blocks=3, weight_bytes=8 * PAGE, activation_bytes=16 * PAGE), 4)
    step = StepCutter().feed(trainer.take_records())[-1]
    seen, ops = trainer.take_samples(), trainer.take_ops()
    seen["page"][::7] += 1000
    whole = build_profile(step, seen, ops, trainer.layers)
    monkeypatch.setattr(sampled_pairs, "PART_PAGES", pages)
    parts = list(sampled_pairs.sample_parts(step, seen))
    assert (len(parts) > 1) == (pages < 1 << 20)
    in_parts = build_profile(step, seen, ops, trainer.layers)
    assert np.array_equal(whole.accesses, in_parts.accesses)
    assert whole.unattributed_pages == in_parts.unattributed_pages > 0


def test_a_huge_page_armed_again_many_times_takes_no_memory_for_each_time() -> None:
    step = two_stretches()
    seen = np.zeros(100_000, SAMPLE_DTYPE)
    seen["page"], seen["epoch"], seen["more_pages"] = 16, 5, 511
    seen["flags"][1:] = ACCESS_AGAIN
    seen["flags"][-1] |= ACCESS_WRITE
    tracemalloc.start()
    profile = build_profile(step, seen, NO_OPS, [""])
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows(profile) == [(0, 0, 0, 2 * PAGE, 2), (0, 1, 0, 2 * PAGE, 2)]
    assert profile.accesses["page_accesses"].tolist() == [200_000, 200_000]
    assert profile.unattributed_pages == 508
    assert peak_bytes < 100 * len(seen)  # a key for each page and time would take 4 KiB


def test_samples_of_no_epoch_of_the_step_are_ignored_in_parts_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampled_pairs, "PART_PAGES", 1)
    profile = build_profile(two_stretches(), samples((16, 4, 0), (17, 9, 0)), NO_OPS, [""])
    assert rows(profile) == []


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
