# SPDX-License-Identifier: Apache-2.0
"""Reads and writes by operators of the real torch, as torch.profiler reports them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.shim.shimmed import shimmed

pytest.importorskip("torch")

OBSERVED = """
from sentineld.shim.op_accesses import AccessStep
from sentineld.shim.script_profiler import ScriptProfiler
torch.set_num_threads(1)
def observed(act, **tensors):
    "(name, bytes, write, estimated) of each access; the name of any other tensor is ''"
    native.step_begin()
    step = AccessStep(native, ScriptProfiler())
    result = act()
    rows = step.finish()
    native.step_end()
    names = {t.untyped_storage().data_ptr(): n for n, t in tensors.items()}
    if isinstance(result, torch.Tensor):
        names[result.untyped_storage().data_ptr()] = "result"
    times = rows["time_ns"].tolist()
    assert times == sorted(times)
    assert all(abs(t - time.monotonic_ns()) < 60e9 for t in times)
    return [
        [names.get(int(r["address"]), ""), int(r["bytes"]), bool(r["write"]), bool(r["estimated"])]
        for r in rows
    ]
a, b = torch.ones(64, 64), torch.ones(64, 64)
MATRIX = 64 * 64 * 4
torch.manual_seed(1)
"""
MATRIX = 64 * 64 * 4

EMPTY = """
step = AccessStep(native, ScriptProfiler())
try: step.finish()
except RuntimeError as error: seen["nothing"] = str(error)
profiled = torch._C._autograd._profiler_enabled
former = torch.profiler.profile.add_metadata_json
seen["not started"] = {}
for error in (RuntimeError, KeyboardInterrupt):
    def add_metadata_json(*_):
        torch.profiler.profile.add_metadata_json = former
        raise error
    script = ScriptProfiler()
    torch.profiler.profile.add_metadata_json = add_metadata_json
    try: AccessStep(native, script)
    except error: pass
    found = [profiled(), script.give_way is None]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        a + b
    found.append(sum(event.name == "aten::add" for event in profiler.events()))
    seen["not started"][error.__name__] = found
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """For each script, the accesses of its operators; all scripts run in one process."""
    scripts = {
        "add": "lambda: a + b, a=a, b=b",
        "in place": "lambda: (b + 1, a.add_(b))[1], a=a, b=b",
        "fill": "lambda: (a.zero_(), b + 1)[1], a=a, b=b",
        "view": "lambda: (a.view(-1), b + 1)[1], a=a, b=b",
        "expanded": "lambda: a + b[0].expand(64, 64), a=a, b=b",
        "gather": "lambda: a[torch.tensor([0, 1] * 16)], a=a",
        "out": "lambda: (torch.add(a, a, out=b), a + 1)[1], a=a, b=b",
    }
    steps = "".join(f"seen[{name!r}] = observed({script})\n" for name, script in scripts.items())
    found: dict[str, Any] = shimmed(OBSERVED + "seen = {}\n" + steps + EMPTY)
    return found


def rows(found: list[list[Any]], name: str) -> list[tuple[int, bool]]:
    return [(size, write) for who, size, write, _ in found if who == name]


READ, WRITE = (MATRIX, False), (MATRIX, True)


def test_inputs_are_read_and_the_output_is_written(seen: dict[str, Any]) -> None:
    found = seen["add"]
    assert (rows(found, "a"), rows(found, "b"), rows(found, "result")) == ([READ], [READ], [WRITE])


def test_an_operator_in_place_reads_and_writes_its_first_argument(
    seen: dict[str, Any],
) -> None:
    assert sorted(rows(seen["in place"], "result")) == [READ, WRITE]  # a.add_() returns a
    assert rows(seen["in place"], "b") == [READ, READ]  # b + 1 reads b as well


def test_overwriting_and_out_arguments_are_not_reads(seen: dict[str, Any]) -> None:
    assert rows(seen["fill"], "a") == [WRITE]
    assert rows(seen["out"], "b") == [WRITE]
    assert READ in rows(seen["out"], "a")


def test_a_view_touches_no_memory(seen: dict[str, Any]) -> None:
    assert rows(seen["view"], "a") == []


def test_expanded_dimensions_take_no_bytes(seen: dict[str, Any]) -> None:
    assert rows(seen["expanded"], "b") == [(64 * 4, False)]


def test_a_gather_reads_at_most_its_output(seen: dict[str, Any]) -> None:
    ((size, write),) = rows(seen["gather"], "a")
    assert (size, write) == (32 * 64 * 4, False)
    assert [row[3] for row in seen["gather"] if row[0] == "a"] == [True]


def test_a_step_without_tensors_is_an_error(seen: dict[str, Any]) -> None:
    assert seen["nothing"] == "the profiler's event tree has no tensors"


def test_a_profiler_whose_start_fails_does_not_run_on(seen: dict[str, Any]) -> None:
    after = [False, True, 1]  # profiled; no access step; additions that the next profiler has seen
    assert seen["not started"] == {"RuntimeError": after, "KeyboardInterrupt": after}
