# SPDX-License-Identifier: Apache-2.0
"""Traces recorded from the toy trainer."""

from __future__ import annotations

import numpy as np

from sentineld.model.kernel_events import FAULT_DTYPE, FAULT_KINDS
from sentineld.model.records import MemoryMapping, TensorName
from sentineld.model.tiers import Tier, Tiers
from sentineld.profile.steps import StepCutter
from sentineld.profile.trace import Trace
from tests.unit.trainer import HEAP, PAGE
from tests.unit.workloads import Network, train

SMALL = Network(blocks=3, weight_bytes=8 * PAGE, activation_bytes=16 * PAGE)
WEIGHTS = 3 * 3
"""Number of parameters of SMALL; they are contiguous from the start of the heap."""


def two_tiers() -> Tiers:
    fast, slow = Tier((0,), 1 << 30, 2e10, 1e10, 80.0, 90.0), Tier((1, 2), 1 << 34)
    return Tiers((fast, slow), 1e8, "config")


def recorded(network: Network = SMALL, steps: int = 2, cuts: tuple[int, ...] = (20, 30)) -> Trace:
    """A trace of a toy network: `steps` steps, then the access step."""
    trainer = train(network, steps + 3, cuts)
    names = {
        HEAP + number * network.weight_bytes: TensorName(
            "parameter", f"{number // 3}.weight{number % 3}"
        )
        for number in range(network.blocks * network.weights)
    }
    steps_seen = tuple(StepCutter().feed(trainer.take_records())[-steps - 1 :])
    faults = np.zeros(3, FAULT_DTYPE)
    faults["time_ns"] = int(steps_seen[0].records["time_ns"][0]) + np.arange(3)
    faults["address"] = HEAP + np.array([0, 1, network.weight_bytes])
    faults["kind"] = [FAULT_KINDS.index(kind) for kind in ("missing_write", "hint", "major")]
    return Trace(
        steps=steps_seen,
        samples=trainer.take_samples(),
        op_accesses=trainer.take_ops(),
        cuts=np.array(cuts, np.uint32),
        layers=tuple(trainer.layers),
        names=names,
        mappings=(MemoryMapping(HEAP, HEAP + (1 << 36), "the shim's heap"),),
        tiers=two_tiers(),
        heap_base=HEAP,
        arena=(HEAP + (1 << 37), 64 * PAGE),
        facts={
            "pid": 4242,
            "torch": "2.6.0",
            "kernel": "6.12",
            "managed": False,
            "policy": "",
            "unix_minus_monotonic_ns": 1_700_000_000_000_000_000,
            "faults_recorded": True,
            "notes": ["a note"],
        },
        faults=faults,
    )
