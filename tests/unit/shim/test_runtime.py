# SPDX-License-Identifier: Apache-2.0
"""A process that the shim gives up, that forks, or that has no free descriptor for a while."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.unit.shim.shimmed import shimmed
from tests.unit.shim.test_access_steps import TRAINING

FORWARDS = """
forwards = []
native.forward = forwards.append
step()
assert forwards
forwards.clear()
def give_up():
    "make the next message fail; the shim sends one, because the number of threads changes"
    def send(self, message, descriptors=()):
        raise RuntimeError("cannot send")
    client.Client.send = send
    torch.set_num_threads(2)
"""

LAYOUT = """
import os
import numpy as np
from sentineld.model import protocol
from sentineld.model.plan import SLOT_DTYPE, Layout
from sentineld.model.protocol import Mode, SlotFlag
from sentineld.model.tiers import Tier, Tiers
from sentineld.plan.layout_wire import pack_layout
MODE, ARENA_BASE, LAYOUT_ID = 0xAC, 0xC0, 0xD0
PAGES, PAGE = 64, os.sysconf("SC_PAGE_SIZE")
tiers = Tiers((Tier((0,), 1 << 30), Tier((0,), 1 << 30)), 1e9, "config")
slots = np.zeros(1, SLOT_DTYPE)
slots["bytes"], slots["flags"] = PAGE, SlotFlag.PLANNED
layout = Layout(slots, np.zeros(0, np.uint32), (), np.full(1, -1, np.int32), PAGE)
fd = os.memfd_create("layout")
os.write(fd, pack_layout(layout, 7, tiers, 1, np.zeros(0, protocol.ACCESS_DTYPE)))
assert not native.layout(fd)
def kept():
    "number of pages in memory of a tensor that has just been freed"
    tensor = torch.ones(PAGES * PAGE, dtype=torch.uint8)
    at = tensor.data_ptr()
    del tensor
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(at // PAGE * 8)
        entries = np.frombuffer(file.read(8 * PAGES), np.uint64)
    return int(np.count_nonzero(entries >> np.uint64(62)))
def state():
    mode = Mode(int.from_bytes(native.control_bytes(MODE, 4), "little"))
    return [mode.name, native.word(LAYOUT_ID), native.word(ARENA_BASE) != 0, kept()]
step()
found = {"live": state()}
give_up()
step()
forwards.clear()
step()
found |= {"alive": shim.alive, "given up": state(), "forwards": len(forwards)}
print(json.dumps(found))
"""

FORK = """
child = os.fork()
if child == 0:
    step()
    os._exit(10 + len(forwards))
print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
"""

PROFILED = """
found = [access_step()]
give_up()
in_thread(shim.step_ended)
found += [shim.alive, profiled()]
model(x)
found.append(profiled())
optimizer.step()
forwards.clear()
step()
print(json.dumps([*found, len(forwards)]))
"""

SHORTAGE = """
import resource
from contextlib import contextmanager
from sentineld.shim.hooks import Layers
from sentineld.shim.names import Names
from sentineld.shim.script_profiler import ScriptProfiler
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
@contextmanager
def no_free_descriptor():
    # The descriptors 0 to 2 are in use. With a limit of 0, even poll() would fail.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try: yield
    finally: resource.setrlimit(resource.RLIMIT_NOFILE, limits)
def reconnected():
    "whether the shim calls again, and is managed: it answers a request"
    global daemon
    step()
    if not select.select([listener], [], [], 0)[0]:
        return False
    daemon, _ = listener.accept()
    return access_step() and bool(repeated()["counts"])
found = {}
found["access step"] = [access_step()]
received()
with no_free_descriptor():
    step()
found["access step"] += [shim.alive, reconnected()]
daemon.close()
with no_free_descriptor():
    for _ in range(3): step()
found["no daemon"] = [shim.alive, reconnected()]
names = Names()
with no_free_descriptor():
    second = runtime.Shim(
        native, client.Client(path), Layers(names), names, ScriptProfiler(), "2"
    )
found["start"] = [second.alive, bool(select.select([listener], [], [], 0)[0])]
second.step_ended()
found["start"].append(bool(select.select([listener], [], [], 0)[0]))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def shortage() -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = shimmed(TRAINING + SHORTAGE)
    return found


def test_a_process_that_the_shim_gives_up_has_no_layout() -> None:
    found = shimmed(TRAINING + FORWARDS + LAYOUT)
    assert found["live"] == ["REPLAY", 7, True, 0]
    assert not found["alive"]
    assert found["given up"] == ["DORMANT", 0, False, 64]
    assert found["forwards"] == 0


def test_a_forked_child_reports_no_layers() -> None:
    assert shimmed(TRAINING + FORWARDS + FORK) == 10


def test_a_profiler_ends_in_its_own_thread_after_the_shim_has_given_up() -> None:
    begun, alive, before, after, forwards = shimmed(TRAINING + FORWARDS + PROFILED)
    assert (begun, alive, before, after, forwards) == (True, False, True, False, 0)


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("access step", [True, True, True]),
        ("no daemon", [True, True]),
        ("start", [True, False, True]),
    ],
)
def test_a_process_without_a_free_descriptor_can_be_managed_later(
    shortage: dict[str, list[bool]], moment: str, expected: list[bool]
) -> None:
    assert shortage[moment] == expected
