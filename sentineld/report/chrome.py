# SPDX-License-Identifier: Apache-2.0
"""Export of a trace as Chrome trace events, for Perfetto and chrome://tracing.

The recorded process gets two extra threads, with the steps and the layer calls as slices, and a
counter of live bytes by kind. A second process has the tensors' lifetimes as slices. Times are Unix
times minus the base time that torch.profiler uses (see TRIMONTH_S), so that the trace's events line
up with torch.profiler's in one file.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

import numpy as np

from sentineld.model.profile import Profile
from sentineld.model.protocol import Boundary
from sentineld.profile.lifetimes import allocation_profile, step_lifetimes
from sentineld.profile.steps import Step, boundary_records, step_events
from sentineld.profile.trace import Trace
from sentineld.report.labels import KINDS, Labels, phases, stretch_places
from sentineld.report.tensors import TensorRow
from sentineld.report.timeline import Timeline, live_bytes

Event = dict[str, Any]
Life = tuple[int, int, int, int]
"""(born_ns, dead_ns, row of the profile's tensors, address)"""

TENSORS_PID_OFFSET = 10_000_000
"""Greater than all process ids of Linux (2^22), so that the tensors' process has a unique id."""
STEP_TID, LAYER_TID = 20_000_001, 20_000_002
LANES_OF_KIND = 100_000
COUNTER_POINTS = 2000
"""Maximum number of counter values per step."""

TRIMONTH_S = 7_889_238
"""torch.profiler counts time from a base time, to keep its numbers short. The base time is a whole
multiple of this duration after the Unix epoch: the latest multiple before the recording."""


class Exporter:
    """Generates the events of one trace. Times are in microseconds since base_ns, a Unix time."""

    def __init__(
        self, trace: Trace, profile: Profile, labels: Labels, rows: list[TensorRow]
    ) -> None:
        """rows: the tensors whose lifetimes are exported."""
        self._trace = trace
        self._profile = profile
        self._labels = labels
        self._rows = {row.tensor: row for row in rows}
        self._pid = int(trace.facts.get("pid", 0))
        self._unix_ns = int(trace.facts.get("unix_minus_monotonic_ns", 0))
        self._persistent = {
            int(tensor["address"]): index
            for index, tensor in enumerate(profile.tensors)
            if tensor["slot"] < 0
        }
        begin_s = (self._begin_ns(trace.steps[0]) + self._unix_ns) // 10**9
        self.base_ns = begin_s // TRIMONTH_S * TRIMONTH_S * 10**9

    def span_us(self) -> tuple[float, float]:
        """Beginning of the first step and end of the last step."""
        steps = self._trace.steps
        return self._us(self._begin_ns(steps[0])), self._us(steps[-1].end_ns)

    def events(self) -> Iterator[Event]:
        """All events."""
        yield from self._names()
        for step in self._trace.steps:
            stepped = allocation_profile(step, self._trace.layers, self._trace.page_bytes)
            yield self._step_slice(step)
            yield from self._layer_slices(step, stepped)
            yield from self._counters(step, stepped)
        yield from self._lanes()

    def _us(self, monotonic_ns: int) -> float:
        return (monotonic_ns + self._unix_ns - self.base_ns) / 1000

    @staticmethod
    def _begin_ns(step: Step) -> int:
        return int(step.records["time_ns"][0])

    def _slice(
        self, pid: int, tid: int, name: str, begin_ns: int, end_ns: int, kind: str, args: Event
    ) -> Event:
        duration = max(end_ns - begin_ns, 0) / 1000
        begin = self._us(begin_ns)
        return {
            "ph": "X",
            "pid": pid,
            "tid": tid,
            "name": name,
            "cat": kind,
            "ts": round(begin, 3),
            "dur": round(duration, 3),
            "args": args,
        }

    def _names(self) -> Iterator[Event]:
        tensors = self._pid + TENSORS_PID_OFFSET
        yield _meta("process_name", self._pid, 0, name=f"process {self._pid}")
        yield _meta("process_name", tensors, 0, name=f"sentineld: tensors of {self._pid}")
        yield _meta("process_sort_index", tensors, 0, sort_index=TENSORS_PID_OFFSET)
        yield _meta("thread_name", self._pid, STEP_TID, name="sentineld: steps")
        yield _meta("thread_name", self._pid, LAYER_TID, name="sentineld: layers")

    def _step_slice(self, step: Step) -> Event:
        slow = " (slowed by recording accesses)" if step is self._trace.access_step else ""
        args = {"allocations": int(np.count_nonzero(step_events(step.records)))}
        return self._slice(
            self._pid,
            STEP_TID,
            f"step {step.number}{slow}",
            self._begin_ns(step),
            step.end_ns,
            "step",
            args,
        )

    def _layer_slices(self, step: Step, stepped: Profile) -> Iterator[Event]:
        """One slice per layer call, from its first boundary to the next boundary that is not a
        cut."""
        times = np.append(boundary_records(step)["time_ns"], np.uint64(step.end_ns)).tolist()
        kinds = stepped.stretches["kind"].tolist()
        places = stretch_places(stepped)
        for phase in phases(stepped):
            first = phase.first
            for stretch in range(phase.first, phase.past):
                following = stretch + 1
                if following < phase.past and kinds[following] == Boundary.CUT:
                    continue
                yield self._slice(
                    self._pid,
                    LAYER_TID,
                    places[first],
                    times[first],
                    times[following],
                    phase.name,
                    {"first stretch": first, "stretches": following - first},
                )
                first = following

    def _counters(self, step: Step, stepped: Profile) -> Iterator[Event]:
        kinds = np.array([self._kind(tensor) for tensor in stepped.tensors], np.int64)
        live = live_bytes(stepped, kinds)
        begin_ns = self._begin_ns(step)
        events = step.records[step_events(step.records)]["time_ns"].astype(np.int64)
        times = np.maximum.accumulate(np.append(events, step.end_ns) - begin_ns)
        line = Timeline(times.astype(np.float64), live)
        if len(times) > COUNTER_POINTS:
            line = line.binned(COUNTER_POINTS)
        shown = [index for index in range(len(KINDS)) if live[index].any()]
        for at, time_ns in enumerate(line.times_ns.tolist()):
            yield {
                "ph": "C",
                "pid": self._pid,
                "tid": 0,
                "name": "live tensor bytes",
                "ts": round(self._us(begin_ns + int(time_ns)), 3),
                "args": {KINDS[index]: int(line.live[index, at]) for index in shown},
            }

    def _kind(self, tensor: np.void) -> int:
        """Index in KINDS for a tensor of any recorded step. All steps have the same sequence of
        allocations, so a slot number refers to the same tensor in each of them."""
        slot = int(tensor["slot"])
        row = slot if slot >= 0 else self._persistent.get(int(tensor["address"]))
        return KINDS.index("persistent") if row is None else int(self._labels.kinds[row])

    def _lives(self) -> Iterator[Life]:
        """Lifetimes and addresses of the exported tensors in all recorded steps."""
        begin_ns, end_ns = self._begin_ns(self._trace.steps[0]), self._trace.steps[-1].end_ns
        for address, index in self._persistent.items():
            if index in self._rows:
                yield begin_ns, end_ns, index, address
        for step in self._trace.steps:
            found = step_lifetimes(step, self._trace.cuts)
            slots = found.tensors["slot"][found.instances["tensor"]]
            for instance, slot in zip(found.instances, slots.tolist(), strict=True):
                if slot >= 0 and slot in self._rows:
                    born = max(int(instance["born_ns"]), self._begin_ns(step))
                    dead = min(int(instance["dead_ns"]), step.end_ns)
                    yield born, max(dead, born), slot, int(instance["address"])

    def _lanes(self) -> Iterator[Event]:
        """Pack lifetimes into lanes, so that no two lifetimes in a lane overlap. Each lane is a
        thread of the process that _names() adds for the tensors."""
        pid = self._pid + TENSORS_PID_OFFSET
        free: dict[str, list[tuple[int, int]]] = {}
        lanes: dict[str, int] = {}
        for born, dead, index, address in sorted(self._lives()):
            row = self._rows[index]
            waiting = free.setdefault(row.kind, [])
            if waiting and waiting[0][0] <= born:
                _, lane = heapq.heappop(waiting)
            else:
                lane = lanes[row.kind] = lanes.get(row.kind, 0) + 1
                yield _meta("thread_name", pid, _tid(row.kind, lane), name=f"{row.kind} {lane}")
            heapq.heappush(waiting, (dead, lane))
            yield self._life(row, lane, born, dead, address)

    def _life(self, row: TensorRow, lane: int, begin_ns: int, end_ns: int, address: int) -> Event:
        args = {
            "bytes": row.bytes,
            "address": f"{address:#x}",
            "bytes read": row.bytes_read,
            "bytes written": row.bytes_written,
            "page accesses": row.page_accesses,
            "hotness": round(row.hotness, 3),
        }
        pid = self._pid + TENSORS_PID_OFFSET
        return self._slice(pid, _tid(row.kind, lane), row.name, begin_ns, end_ns, row.kind, args)


def _tid(kind: str, lane: int) -> int:
    return (KINDS.index(kind) + 1) * LANES_OF_KIND + lane


def _meta(what: str, pid: int, tid: int, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}
