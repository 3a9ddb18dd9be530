# SPDX-License-Identifier: Apache-2.0
"""Access steps and the script's own profilers do not disturb each other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.shim.shimmed import shimmed

pytest.importorskip("torch")

SCRIPT = """
from torch.profiler import ProfilerActivity, profile, schedule
from sentineld.shim.op_accesses import AccessStep
from sentineld.shim.script_profiler import ScriptProfiler
torch.set_num_threads(1)
script = ScriptProfiler()
script.watch()
x = torch.ones(64, 64)
CPU = {"activities": [ProfilerActivity.CPU]}
def adds(profiler):
    return sum(event.name == "aten::add" for event in profiler.events())
def access_step(act):
    "(number of rows, or -1 if the step was interrupted; what act() returns)"
    native.step_begin()
    step = AccessStep(native, script)
    x + 1
    result = act()
    rows = -1 if step.interrupted else len(step.finish())
    native.step_end()
    return rows, result
"""

STARTS = """
def whole():
    with profile(**CPU) as profiler:
        x + 1
    return adds(profiler)
def begins():
    profiler = profile(**CPU)
    profiler.start()
    x + 1
    return profiler
found = {"whole": access_step(whole), "active": script.active}
rows, profiler = access_step(begins)
found["active in between"] = script.active
x + 1
profiler.stop()
found["begins"] = rows, adds(profiler)
found["next"] = access_step(lambda: 0)[0] > 0
print(json.dumps(found))
"""

STEPS = """
seen = []
profiler = profile(schedule=schedule(wait=1, warmup=1, active=2), **CPU)
with profiler:
    for step in range(5):
        x + 1
        seen.append(script.active)
        if not script.active:
            assert access_step(lambda: 0)[0] > 0
        profiler.step()
        if step == 3:
            seen.append(adds(profiler))
print(json.dumps(seen))
"""


def test_an_access_step_gives_way_to_a_profiler_of_the_script() -> None:
    found: dict[str, Any] = shimmed(SCRIPT + STARTS)
    assert found["whole"] == [-1, 1]
    assert not found["active"]
    assert found["active in between"]
    assert found["begins"] == [-1, 2]
    assert found["next"]


def test_a_scheduled_profiler_is_active_from_its_warm_up_on() -> None:
    seen = shimmed(SCRIPT + STEPS)
    assert seen == [False, True, True, True, 2, False]
