# SPDX-License-Identifier: Apache-2.0
"""Quotes constants from the code in the documentation, so that both state the same values.

A page quotes a constant between two comments, which Markdown does not show:

    <!-- value: plan.move_share as percent -->99 %<!-- /value -->

`make docs` writes the value between the comments; tests/unit/packaging/test_values.py fails if the
value is out of date. SOURCES says where each constant is; FORMATS says how its value is written.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

AUTO = "sentineld.policies.auto.policy"
PARTS = "sentineld.policies.auto.parts"
SHARES = "sentineld.policies.shares"
SPILL = "sentineld.policies.sentinel.spill"
CORRECT = "sentineld.plan.correct"
FAULTS = "sentineld.plan.fault_latency"
KEEP = "sentineld.plan.keep"
LOOP = "sentineld.simulate.loop"
SPARE = "sentineld.plan.spare"
TRIAL = "sentineld.plan.stall_trial"
CLAIMS = "tests.bench.claims"
DUAL = "sentineld.policies.bounds.step_time"
PROGRAM = "sentineld.policies.lp.program"
HUGE = "sentineld.plan.huge"
CUTS = "sentineld.plan.cuts"
DIVERGENCE = "sentineld.session.live.divergence"
SHAPES = "sentineld.session.live.shapes"
CHOOSING = "sentineld.session.work.choosing"
PROFILING = "sentineld.session.work.profiling"
TIMING = "sentineld.model.timing"
ENERGY = "sentineld.model.energy"
PRESETS = "sentineld.host.presets"
PROTOCOL = "sentineld.model.protocol"
EMULATED = "sentineld.migrate.emulated"
SYSCALLS = "sentineld.migrate.syscalls"
TRACKER = "sentineld.migrate.boundary_tracker"
CGROUP = "sentineld.observe.cgroup"
HEAT = "sentineld.policies.temperature.heat"
HEAT_CURVE = "sentineld.policies.temperature.curve"
HEAT_MEMBERS = "sentineld.heat.members"
HEAT_SESSION = "sentineld.heat.session"
HEAT_SHARING = "sentineld.heat.sharing"
HEAT_TARGET = "sentineld.heat.target"
LOOKING = "sentineld.heat.looking"
SCANNING = "sentineld.heat.scanning"
UNITS = "sentineld.policies.temperature.units"
DELAY_C = "sentineld/shim/native/delay.c"

SOURCES: dict[str, tuple[str, str]] = {
    "plan.move_share": (SHARES, "MOVE_SHARE"),
    "curve.points": (HEAT_CURVE, "POINTS_MAX"),
    "heat.divide_share": (HEAT_SHARING, "DIVIDE_SHARE"),
    "heat.change_min": (HEAT_SHARING, "CHANGE_MIN"),
    "heat.report": (HEAT_SHARING, "REPORT_S"),
    "heat.stuck": (HEAT_SHARING, "STUCK_S"),
    "heat.room_share": (HEAT_SHARING, "ROOM_SHARE"),
    "heat.busy": (SCANNING, "BUSY_S_MAX"),
    "heat.busy_scans": (SCANNING, "BUSY_SCANS_MAX"),
    "heat.cgroup_levels": (CGROUP, "LEVELS_MAX"),
    "heat.levels": (HEAT, "LEVELS"),
    "heat.look": (HEAT_MEMBERS, "LOOK_S"),
    "heat.processes": (HEAT_TARGET, "PROCESSES_MAX"),
    "heat.rest": (HEAT, "REST"),
    "heat.slack_share": (HEAT, "SLACK_SHARE"),
    "heat.unit_pages": (UNITS, "UNIT_PAGES_MIN"),
    "heat.units": (UNITS, "UNITS_MAX"),
    "heat.samples": (SCANNING, "SAMPLES_MAX"),
    "heat.turn": (HEAT_SESSION, "TURN_S"),
    "heat.warm_up_scans": (SCANNING, "WARM_UP_SCANS"),
    "heat.window": (LOOKING, "WINDOW_S"),
    "plan.margin_share": (SHARES, "MARGIN_SHARE"),
    "auto.keep_share": (AUTO, "KEEP_SHARE"),
    "auto.groups": (AUTO, "ATTEMPTS[0][0]"),
    "auto.iterations": (AUTO, "ATTEMPTS[0][1]"),
    "auto.second_groups": (AUTO, "ATTEMPTS[1][0]"),
    "auto.second_iterations": (AUTO, "ATTEMPTS[1][1]"),
    "auto.grain_share": (PARTS, "GRAIN_SHARE"),
    "auto.grain_pages": (PARTS, "GRAIN_PAGES"),
    "spill.pool_gain": (SPILL, "POOL_GAIN"),
    "claims.close": (CLAIMS, "CLOSE"),
    "stall.settling_steps": (TRIAL, "SETTLING_STEPS"),
    "keep.resident_max": (KEEP, "RESIDENT_MAX"),
    "lp.time_limit": (PROGRAM, "TIME_LIMIT_S"),
    "bound.gap": (DUAL, "GAP"),
    "bound.rounds": (DUAL, "ROUNDS"),
    "cost.digits": ("sentineld.policies.lp.groups", "DIGITS"),
    "interleave.shares": ("sentineld.policies.rivals.interleave", "SHARES"),
    "static.gap": ("sentineld.policies.rivals.static", "GAP"),
    "correct.stall_share": (CORRECT, "STALL_SHARE"),
    "correct.late_share": (CORRECT, "LATE_SHARE"),
    "correct.entering_steps": (FAULTS, "ENTERING_STEPS"),
    "correct.fault_window_steps": (FAULTS, "WINDOW_STEPS"),
    "correct.fault_reads_min": (FAULTS, "READS_MIN"),
    "correct.fault_retry_steps": (FAULTS, "RETRY_STEPS"),
    "correct.fault_share": (FAULTS, "SHARE"),
    "correct.faster_steps": (FAULTS, "FASTER_STEPS"),
    "correct.fall_tolerance": (CORRECT, "FALL_TOLERANCE"),
    "correct.rate_tolerance": (CORRECT, "RATE_TOLERANCE"),
    "correct.rate_gain": (CORRECT, "RATE_GAIN"),
    "correct.evidence_share": (CORRECT, "EVIDENCE_SHARE"),
    "correct.window_steps": (CORRECT, "WINDOW_STEPS"),
    "correct.drift_min": (CORRECT, "DRIFT_MIN"),
    "correct.drift_noise": (CORRECT, "DRIFT_NOISE"),
    "correct.recheck_steps": (CORRECT, "RECHECK_STEPS"),
    "correct.patience_steps": (CORRECT, "PATIENCE_STEPS"),
    "correct.patience_steps_max": (CORRECT, "PATIENCE_STEPS_MAX"),
    "correct.earned_steps": (CORRECT, "EARNED_STEPS"),
    "correct.gain_min": (LOOP, "GAIN_MIN"),
    "spare.share": (SPARE, "SPARE_SHARE"),
    "spare.tried_shares": (LOOP, "SPARE_TRIED_SHARES"),
    "divergence.in_row": (DIVERGENCE, "IN_ROW_MAX"),
    "divergence.window_steps": (DIVERGENCE, "WINDOW_STEPS"),
    "divergence.leave_share": (DIVERGENCE, "LEAVE_SHARE"),
    "divergence.earned_steps": (DIVERGENCE, "EARNED_STEPS"),
    "divergence.patience_steps": (DIVERGENCE, "PATIENCE_STEPS"),
    "divergence.patience_steps_max": (DIVERGENCE, "PATIENCE_STEPS_MAX"),
    "shapes.kept": (SHAPES, "SHAPES_MAX"),
    "profiling.idle": (PROFILING, "IDLE_S"),
    "profiling.idle_steps": (PROFILING, "IDLE_STEPS"),
    "profiling.warm_up_steps": (PROFILING, "WARM_UP_STEPS"),
    "choosing.other_shape_steps": (CHOOSING, "OTHER_SHAPE_STEPS"),
    "choosing.sizes_steps": (CHOOSING, "SIZES_STEPS"),
    "choosing.similar_share": (CHOOSING, "SIMILAR_SHARE"),
    "profile.periods": ("sentineld.session.work.rearm", "PERIODS"),
    "sizes.steady_share": ("sentineld.profile.sizes", "STEADY_SHARE"),
    "sizes.last_steps": ("sentineld.profile.sizes", "LAST_STEPS"),
    "samples.user_bytes": ("sentineld.session.intake.sample_memory", "USER_BYTES_MAX"),
    "sizes.optional_bytes": ("sentineld.profile.sizes", "OPTIONAL_BYTES_MAX"),
    "page.tensors": ("sentineld.report.page_data", "TENSORS_MAX"),
    "mover.refresh_steps": (TRACKER, "REFRESH_STEPS_MAX"),
    "mover.batch_pages": (SYSCALLS, "BATCH_PAGES"),
    "emulated.batch_pages": (EMULATED, "BATCH_PAGES"),
    "emulated.shared_batch_pages": (EMULATED, "SHARED_BATCH_PAGES"),
    "emulated.debt_min": (DELAY_C, "PAY_NS_MIN"),
    "emulated.credit_max": (DELAY_C, "CREDIT_NS_MAX"),
    "huge.ranges": (HUGE, "RANGES_MAX"),
    "cuts.max": (CUTS, "CUTS_MAX"),
    "cuts.stretch_share": (CUTS, "STRETCH_SHARE_MAX"),
    "cuts.touched_share": (CUTS, "TOUCHED_SHARE_MAX"),
    "shim.tensor_bytes": (PROTOCOL, "TENSOR_BYTES_MIN"),
    "shim.heartbeat_stale": (PROTOCOL, "HEARTBEAT_STALE_NS"),
    "division.curves_divided_max": ("sentineld.plan.division", "CURVES_DIVIDED_MAX"),
    "division.slowdown_max": ("sentineld.plan.division", "SLOWDOWN_MAX"),
    "shared.gain_min": ("sentineld.machine.shared", "GAIN_MIN"),
    "placing.again": ("sentineld.session.plans.placing", "AGAIN_S"),
    "shim.passes_without_step": ("sentineld/shim/stepless.py", "PASSES_MAX"),
    "steps.op_accesses": ("sentineld.observe.shim_link", "OP_ACCESSES_MAX"),
    "steps.records": ("sentineld.profile.steps", "STEP_RECORDS_MAX"),
    "steps.long": ("sentineld.profile.steps", "LONG_STEPS_MAX"),
    "shim.access_step_forwards": ("sentineld/shim/op_accesses.py", "FORWARDS_MAX"),
    "shim.forked_access_steps": ("sentineld/shim/runtime.py", "FORKED_ACCESS_STEPS_MAX"),
    "shim.access_steps": ("sentineld/shim/runtime.py", "ACCESS_STEPS_MAX"),
    "recompute.candidates": ("sentineld.policies.recompute.candidates", "CANDIDATES_MAX"),
    "recompute.layers": ("sentineld.policies.recompute.candidates", "SEGMENT_LAYERS"),
    "recompute.shares": ("sentineld.policies.auto.recompute", "SHARES"),
    "shim.retry": ("sentineld/shim/client.py", "RETRY_SECONDS"),
    "shim.retry_refused": ("sentineld/shim/client.py", "REFUSED_SECONDS"),
    "timing.cached_bytes": (TIMING, "CACHED_BYTES"),
    "timing.fault_pages_max": (TIMING, "FAULT_PAGES_MAX"),
    "timing.fault_pages_min": (TIMING, "FAULT_PAGES_MIN"),
    "energy.core": (ENERGY, "CORE_W"),
    "energy.waiting": (ENERGY, "WAITING_CORE_W"),
    "energy.copy": (ENERGY, "COPY_BYTES_PER_S"),
    "energy.dram": (ENERGY, "DRAM.read_pj_per_bit"),
    "energy.cxl": (ENERGY, "MEDIA[cxl].read_pj_per_bit"),
    "energy.optane_read": (ENERGY, "MEDIA[optane].read_pj_per_bit"),
    "energy.optane_write": (ENERGY, "MEDIA[optane].write_pj_per_bit"),
    "energy.nvme_read": (ENERGY, "MEDIA[nvme].read_pj_per_bit"),
    "energy.nvme_write": (ENERGY, "MEDIA[nvme].write_pj_per_bit"),
    "presets.threads": (PRESETS, "SOCKET_THREADS"),
    "presets.dram": (PRESETS, "DRAM_BYTES_PER_S"),
    "presets.cxl.read": (PRESETS, "PRESETS[cxl].read_bytes_per_s"),
    "presets.cxl.write": (PRESETS, "PRESETS[cxl].write_bytes_per_s"),
    "presets.cxl.migration": (PRESETS, "PRESETS[cxl].migration_bytes_per_s"),
    "presets.cxl_4k.migration": (PRESETS, "PRESETS[cxl-4k].migration_bytes_per_s"),
    "presets.remote.read": (PRESETS, "PRESETS[remote].read_bytes_per_s"),
    "presets.remote.write": (PRESETS, "PRESETS[remote].write_bytes_per_s"),
    "presets.remote.migration": (PRESETS, "PRESETS[remote].migration_bytes_per_s"),
    "presets.optane.read": (PRESETS, "PRESETS[optane].read_bytes_per_s"),
    "presets.optane.write": (PRESETS, "PRESETS[optane].write_bytes_per_s"),
    "presets.optane.migration": (PRESETS, "PRESETS[optane].migration_bytes_per_s"),
    "presets.nvme.read": (PRESETS, "PRESETS[nvme].read_bytes_per_s"),
    "presets.nvme.write": (PRESETS, "PRESETS[nvme].write_bytes_per_s"),
    "presets.dram.read": (PRESETS, "PRESETS[dram].read_bytes_per_s"),
    "presets.dram.write": (PRESETS, "PRESETS[dram].write_bytes_per_s"),
    "presets.dram.migration": (PRESETS, "PRESETS[dram].migration_bytes_per_s"),
    "noise.scatter": ("tests/bench/noise.py", "NOISE"),
    "noise.steps": ("tests/bench/noise.py", "STEPS"),
    "noise.seeds": ("tests/bench/noise.py", "SEEDS"),
    "boundaries.near": ("tests/bench/boundaries.py", "NEAR"),
    "bench_policies.tie": ("tests/bench/policy_figures.py", "TIE"),
    "bench_shim.pairs": ("tests/bench/shim/__main__.py", "PAIRS"),
    "bench_shim.pairs_max": ("tests/bench/shim/__main__.py", "PAIRS_MAX"),
    "bench_shim.plain_within": ("tests/bench/shim/figures.py", "PLAIN_WITHIN"),
    "bench_train.predicted_within": ("tests/bench/training/figures.py", "PREDICTED_WITHIN"),
    "bench_train.injected_within": ("tests/bench/training/figures.py", "INJECTED_WITHIN"),
}
"""For each name, the place of the constant: (module, attribute), or (file, name). In a C file, the
constant is a #define; in a Python file, it is an assignment NAME = number. Modules that need torch,
or that have side effects when they are imported (such as the shim's), are read as files. An
attribute may have dots and [index] or [key]."""

_NUMBER = {".c": r"^#define {} ([\d.]+)", ".py": r"^{} = ([\d.e+-]+)(?:  #.*)?$"}


def _percent(value: float) -> str:
    return f"{round(100 * value, 6):g} %"


def _bytes(value: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value % size == 0:
            return f"{value // size} {unit}"
    return f"{value} bytes"


FORMATS: dict[str, Callable[[Any], str]] = {
    "number": lambda value: f"{value:,.10g}",
    "count": lambda value: str(len(value)),
    "percent": _percent,
    "remaining-percent": lambda value: _percent(1 - value),
    "percents": lambda value: ", ".join(map(_percent, value)),
    "ratio": lambda value: str(Fraction(value).limit_denominator(1 << 20)),
    "bytes": _bytes,
    "pages-as-bytes": lambda value: _bytes(4096 * value),
    "GB/s": lambda value: f"{value / 1e9:g}",
    "seconds": lambda value: f"{value:g} s",
    "ns-as-ms": lambda value: f"{value / 1e6:g} ms",
    "ns-as-seconds": lambda value: f"{value / 1e9:g} s",
}

_MARKER = re.compile(
    r"(<!-- value: (?P<name>[\w.]+) as (?P<format>[\w/-]+) -->)(?P<text>.*?)(<!-- /value -->)"
)


def value_of(name: str) -> Any:
    """The value of a constant of SOURCES.

    Raises KeyError, AttributeError or ValueError if the constant does not exist.
    """
    source, attribute = SOURCES[name]
    if "/" in source:
        file = ROOT / source
        line = _NUMBER[file.suffix].format(attribute)
        found = re.search(line, file.read_text(), re.MULTILINE)
        if found is None:
            raise ValueError(f"{source} defines no {attribute}")
        return float(found[1])
    value: Any = importlib.import_module(source)
    for part in re.findall(r"[\w-]+", attribute):
        if isinstance(value, dict):
            value = value[part]
        elif isinstance(value, tuple):
            value = value[int(part)]
        else:
            value = getattr(value, part)
    return value


def names_in(text: str) -> set[str]:
    """The names of the constants that a page quotes."""
    return {match["name"] for match in _MARKER.finditer(text)}


def with_values(text: str) -> str:
    """The page with the current value of every quoted constant.

    Raises KeyError for an unknown name or format, ValueError for an incomplete marker.
    """
    if text.count("<!-- value:") != len(_MARKER.findall(text)):
        raise ValueError("a marker is not `<!-- value: NAME as FORMAT -->...<!-- /value -->`")

    def quoted(match: re.Match[str]) -> str:
        begin, _, _, _, end = match.groups()
        return begin + FORMATS[match["format"]](value_of(match["name"])) + end

    return _MARKER.sub(quoted, text)
