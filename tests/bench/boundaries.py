# SPDX-License-Identifier: Apache-2.0
"""Measures the stretches of recorded models: `python -m tests.bench.boundaries`.

Reads the traces of build/bench/traces (make bench-traces) or of another folder.
The budget is 20 % of the peak. Prints for each model:
- the most bytes that one stretch touches, divided by half of the budget;
- the duration of the longest stretch, divided by 1 % of the step;
- both figures again with a cut before every allocation (the shortest possible stretches);
- the share of tensor bytes whose accesses the framework reports, and the share of tensor bytes
  whose accesses are only estimated;
- the unmanaged bytes, divided by the peak;
- the share of the allocations of 4 KiB and more that a plan places in the arena.

The exit status is 1 if one of the first two figures exceeds both 1 and 1.1 times the same figure
with a cut before every allocation. It is also 1 if a plan leaves an allocation of 4 KiB or more
outside the arena, and 2 if the folder has no traces.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sentineld.host.presets import preset_tiers
from sentineld.model.profile import Profile
from sentineld.model.protocol import Alloc, Boundary, Event
from sentineld.model.records import SAMPLE_DTYPE, Records
from sentineld.plan.cuts import STRETCH_SHARE_MAX, choose_cuts
from sentineld.plan.items import access_pages
from sentineld.policies.registry import policy
from sentineld.profile.trace import Trace, profile_of
from sentineld.profile.trace_file import load_trace
from tests.bench.shim.coverage import coverage
from tests.bench.traces import TRACES

FAST_FRACTION = 0.2
POLICY, PRESET = "auto", "cxl"
TOUCHED_SHARE_MAX = 0.5
"""Limit for the bytes that one stretch touches, as a share of the budget."""

NEAR = 1.1
"""A figure above its limit is still accepted if it is at most this factor times the same figure
with a cut before every allocation."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Boundaries:
    """The figures of one model."""

    stretches: int
    cuts: int
    touched: float  # most bytes touched by a stretch, divided by the limit
    finest_touched: float  # `touched` with a cut before every allocation
    time: float  # duration of the longest stretch, divided by the limit
    finest_time: float  # `time` with a cut before every allocation
    known_share: float  # share of tensor bytes whose accesses the framework reports
    estimated_share: float  # share of tensor bytes whose accesses are only estimated
    outside_share: float | None  # unmanaged bytes divided by the peak, if known
    planned_share: float  # share of the allocations of 4 KiB and more with a slot in the arena

    @property
    def holds(self) -> bool:
        """Whether `touched` and `time` are within their limits.

        `touched` may be at most 1 or NEAR times `finest_touched`, whichever is larger. The same
        rule applies to `time` and `finest_time`.
        """
        return self.touched <= max(1.0, NEAR * self.finest_touched) and self.time <= max(
            1.0, NEAR * self.finest_time
        )

    @property
    def planned(self) -> bool:
        """Whether every allocation of 4 KiB and more has a slot in the arena."""
        return self.planned_share >= 1.0


def boundaries_of(trace: Trace) -> Boundaries:
    """Compute the figures of a trace."""
    profile = profile_of(trace)
    finest = profile_of(recut(trace, everywhere=True))
    known_share, accessed_share = _access_shares(trace, profile)
    unmanaged = trace.facts.get("unmanaged_bytes")
    budget_bytes = int(profile.peak_bytes * FAST_FRACTION)
    plan = policy(POLICY).plan(profile, preset_tiers(PRESET, 1), budget_bytes)
    return Boundaries(
        stretches=profile.stretch_count,
        cuts=int(profile.stretches["cut"].sum()),
        touched=float(_touched(profile).max()),
        finest_touched=float(_touched(finest).max()),
        time=float(_time(profile).max()),
        finest_time=float(_time(finest).max()),
        known_share=known_share,
        estimated_share=accessed_share - known_share,
        outside_share=unmanaged / profile.peak_bytes if isinstance(unmanaged, int) else None,
        planned_share=coverage(plan.layout, profile).planned_share,
    )


def _touched(profile: Profile) -> Floats:
    """Bytes that each stretch touches, divided by TOUCHED_SHARE_MAX of the budget."""
    pages = np.bincount(
        profile.accesses["stretch"], access_pages(profile), minlength=profile.stretch_count
    )
    limit_bytes = profile.peak_bytes * FAST_FRACTION * TOUCHED_SHARE_MAX
    touched: Floats = pages * profile.page_bytes / limit_bytes
    return touched


def _time(profile: Profile) -> Floats:
    """Duration of each stretch, divided by STRETCH_SHARE_MAX of the step."""
    time_ns = profile.stretches["time_ns"].astype(np.float64)
    shares: Floats = time_ns / max(time_ns.sum() * STRETCH_SHARE_MAX, 1.0)
    return shares


def _access_shares(trace: Trace, profile: Profile) -> tuple[float, float]:
    """Return the share of tensor bytes with a reported access, and the share with a reported or an
    estimated access."""
    sizes = profile.tensors["bytes"].astype(np.float64)
    known = replace(trace, op_accesses=trace.op_accesses[~trace.op_accesses["estimated"]])
    shares = []
    for accesses in (profile_of(known).accesses, profile.accesses):
        touched = np.zeros(len(sizes), np.bool_)
        touched[accesses["tensor"]] = True
        shares.append(float(sizes[touched].sum() / sizes.sum()))
    return shares[0], shares[1]


def recut(trace: Trace, everywhere: bool = False) -> Trace:
    """Return the trace with the access step's cuts replaced by those that choose_cuts() now makes.

    Page samples are left out: a sample has only the number of its epoch, and the epochs begin at
    the recorded cuts, not at the new ones. The framework's accesses have times, so they can be
    assigned to the new stretches.

    everywhere: ignore choose_cuts() and cut before every allocation.
    """
    timed = trace.timed_step or trace.access_step
    if everywhere:
        cuts = np.arange(profile_of(trace).slot_count, dtype=np.uint32)
    else:
        cuts = choose_cuts(timed, int(profile_of(trace).peak_bytes * FAST_FRACTION))
    step = replace(trace.access_step, records=_recut_records(trace.access_step.records, cuts))
    no_samples = np.empty(0, SAMPLE_DTYPE)
    return replace(trace, steps=(*trace.steps[:-1], step), samples=no_samples, cuts=cuts)


def _recut_records(records: Records, cuts: npt.NDArray[np.uint32]) -> Records:
    is_boundary = records["event"] == Event.BOUNDARY
    records = records[~(is_boundary & (records["detail"] == Boundary.CUT))]
    births = np.flatnonzero((records["event"] == Event.ALLOC) & (records["detail"] == Alloc.STEP))
    at = births[cuts]
    added = records[at].copy()
    added["event"], added["detail"] = Event.BOUNDARY, Boundary.CUT
    added["address"], added["bytes"] = 0, cuts
    records = np.insert(records, at, added)
    is_boundary = records["event"] == Event.BOUNDARY
    records["value"][is_boundary] = np.arange(np.count_nonzero(is_boundary))
    return records


def table(found: dict[str, Boundaries]) -> str:
    """Format the figures as a text table."""
    lines = [
        f"{'':<10} {'':>9} {'':>5} {'touched most':>15} {'longest':>15} {'accesses':>15}",
        f"{'model':<10} {'stretches':>9} {'cuts':>5} {'now':>7} {'finest':>7} {'now':>7} "
        f"{'finest':>7} {'known':>7} {'estim.':>7} {'outside':>8} {'planned':>8}",
    ]
    for model, one in found.items():
        outside = "?" if one.outside_share is None else f"{one.outside_share:.3%}"
        lines.append(
            f"{model:<10} {one.stretches:>9} {one.cuts:>5} {one.touched:>7.2f} "
            f"{one.finest_touched:>7.2f} {one.time:>7.2f} {one.finest_time:>7.2f} "
            f"{one.known_share:>7.1%} {one.estimated_share:>7.1%} {outside:>8} "
            f"{one.planned_share:>8.1%}"
            f"{'' if one.holds else '  could be cut'}{'' if one.planned else '  not all planned'}"
        )
    return "\n".join(lines)


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.bench.boundaries", description=__doc__)
    parser.add_argument("traces", nargs="?", type=Path, default=TRACES, help="folder of traces")
    parser.add_argument(
        "--anew",
        action="store_true",
        help="replace the recorded cuts with those of the current planner",
    )
    arguments = parser.parse_args()
    found = {}
    for file in sorted(arguments.traces.glob("*.npz")):
        trace = load_trace(file)
        found[file.stem] = boundaries_of(recut(trace) if arguments.anew else trace)
    if not found:
        print(f"error: no traces in {arguments.traces} (make bench-traces)", file=sys.stderr)
        return 2
    print(table(found))
    return 0 if all(one.holds and one.planned for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
