# SPDX-License-Identifier: Apache-2.0
"""Random profiles of whole steps: any mix of sizes, lifetimes and accesses."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from sentineld.model.arrays import Integers
from sentineld.model.profile import ACCESS_DTYPE, STRETCH_DTYPE, TENSOR_DTYPE, Kind, Profile
from sentineld.model.protocol import Boundary
from sentineld.profile.lifetimes import peak_bytes
from tests.unit.plan.toys import HEAP, PAGE

WITHIN, WRAPS, OUTLIVES = range(3)
"""Lifetimes: within the step, across the step's end, or longer than a step."""
LIFETIMES = (0.8, 0.15, 0.05)
SIZE_MAX_BYTES = 64 << 20


def random_profile(seed: int, tensors: int, stretches: int) -> Profile:
    """A random profile with these numbers of tensors and stretches, generated from the seed."""
    random = np.random.default_rng(seed)
    slots = tensors - int(random.integers(0, tensors // 2 + 1))
    table = np.zeros(tensors, TENSOR_DTYPE)
    table["bytes"] = _sizes(random, tensors)
    pages = -(-table["bytes"].astype(np.int64) // PAGE)
    gaps = random.integers(0, 2, tensors)
    table["address"] = HEAP + PAGE * (np.cumsum(pages + gaps) - pages - gaps)
    births, deaths = _events(random, slots)
    count = slots + int((deaths >= 0).sum())
    begins = np.sort(random.integers(0, count + 1, stretches))
    begins[0] = 0

    def stretch_of(event: Integers) -> Integers:
        return np.maximum(np.searchsorted(begins, event, side="right") - 1, 0)

    outlives = deaths < 0
    own = table[:slots]
    own["slot"] = np.arange(slots)
    own["kind"] = np.where(outlives, Kind.PERSISTENT, Kind.ACTIVATION)
    own["birth_event"] = births
    own["death_event"] = np.where(outlives, count, deaths)
    own["wraps"] = ~outlives & (deaths <= births)
    own["birth_stretch"] = stretch_of(births)
    own["death_stretch"] = np.where(outlives, stretches - 1, stretch_of(deaths))
    rest = table[slots:]
    rest["slot"], rest["kind"] = -1, Kind.PERSISTENT
    rest["death_event"], rest["death_stretch"] = count, stretches - 1
    steps = np.zeros(stretches, STRETCH_DTYPE)
    steps["event"] = begins
    steps["cursor"] = np.searchsorted(births, begins)
    steps["kind"] = Boundary.STEP
    steps["kind"][1:] = random.choice([Boundary.FORWARD, Boundary.BACKWARD], stretches - 1)
    steps["time_ns"] = random.exponential(random.choice([1e4, 1e6, 1e8]), stretches)
    return Profile(
        tensors=table,
        accesses=_accesses(random, table, pages, stretches),
        stretches=steps,
        layers=("",),
        slot_count=slots,
        event_count=count,
        page_bytes=PAGE,
        peak_bytes=peak_bytes(table, count, PAGE),
        source="shim",
        unattributed_pages=0,
        heap_base=HEAP,
    )


def _sizes(random: np.random.Generator, tensors: int) -> Integers:
    typical = random.choice([5e3, 6e4, 4e5])
    found = np.exp(random.normal(np.log(typical), 2.0, tensors))
    return np.clip(found, 1, SIZE_MAX_BYTES).astype(np.int64)


def _events(random: np.random.Generator, slots: int) -> tuple[Integers, Integers]:
    """Choose the event of each tensor's birth, in ascending order, and the event of its death.

    A death of -1 means that the tensor outlives the step. In some profiles, most tensors die soon
    after their birth.
    """
    fate = random.choice(3, slots, p=LIFETIMES)
    dying = np.flatnonzero(fate != OUTLIVES)
    order = random.permutation(slots + len(dying))
    births, left = np.sort(order[:slots]), np.sort(order[slots:]).tolist()
    deaths = np.full(slots, -1)
    longest = random.choice([0.02, 0.2, 1.0])
    for slot in random.permutation(dying).tolist():
        later = [event for event in left if event > births[slot]]
        earlier = [event for event in left if event < births[slot]]
        if later and (fate[slot] == WITHIN or not earlier):
            at = min(int(random.exponential(longest * len(later))), len(later) - 1)
            deaths[slot] = later[at]
        else:
            deaths[slot] = random.choice(earlier)
        left.remove(deaths[slot])
    return births, deaths


def _accesses(
    random: np.random.Generator, tensors: np.ndarray, pages: Integers, stretches: int
) -> np.ndarray:
    rows = []
    for row, tensor in enumerate(tensors):
        birth, death = int(tensor["birth_stretch"]), int(tensor["death_stretch"])
        alive = np.arange(birth, death + 1)
        if tensor["wraps"]:
            alive = np.union1d(np.arange(birth, stretches), np.arange(death + 1))
        size = int(tensor["bytes"])
        uses = min(len(alive), int(random.integers(0, 6)))
        for stretch in random.choice(alive, uses, replace=False).tolist():
            read = int(size * random.choice([0, 0.1, 1, 2]))
            written = int(size * random.choice([0, 1]))
            touched = int(random.integers(1, pages[row] + 1))
            if read or written:
                rows.append((stretch, row, read, written, touched, touched))
    return np.array(sorted(rows), ACCESS_DTYPE)


def random_profiles(tensors_max: int) -> st.SearchStrategy[Profile]:
    """Profiles of 1 to tensors_max tensors and 1 to 80 stretches."""
    return st.builds(
        random_profile,
        st.integers(0, 2**32 - 1),
        st.integers(1, tensors_max),
        st.integers(1, 80),
    )
