# SPDX-License-Identifier: Apache-2.0
"""place() and placing(): with and without the shim, and their errors."""

from __future__ import annotations

import contextlib
import ctypes

import pytest

torch = pytest.importorskip("torch")

from sentineld.model.protocol import Placement  # noqa: E402
from sentineld.shim import place, placing  # noqa: E402
from sentineld.shim.placement import PLACEMENTS, Placer, Placing  # noqa: E402
from tests.unit.shim.shimmed import shimmed  # noqa: E402


class Library:
    """Stands in for Native: all addresses except those in `outside` are in the heap."""

    def __init__(self) -> None:
        self.outside: set[int] = set()
        self.placed: list[tuple[int, int]] = []
        self.births = 0

    def placeable(self, address: int) -> bool:
        return address not in self.outside

    def place(self, address: int, placement: int) -> None:
        self.placed.append((address, placement))

    def placing(self, placement: int) -> int:
        before, self.births = self.births, placement
        return before


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def placer(library: Library) -> Placer:
    return Placer(lambda: library)  # type: ignore[arg-type,return-value]


def address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def test_tiers_have_the_protocols_values() -> None:
    assert {Placement(value).name.lower(): value for value in Placement} == PLACEMENTS


def test_a_module_s_parameters_and_buffers_are_placed(placer: Placer, library: Library) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(4096))
    placer.place(net, "slow")
    large = [net[0].weight, *net[1].parameters(), net[1].running_mean, net[1].running_var]
    assert {one for one, _ in library.placed} == {address(tensor) for tensor in large}
    assert {placement for _, placement in library.placed} == {Placement.SLOW}
    assert len(library.placed) == len(large)


def test_a_view_places_its_storage_and_shared_storages_are_placed_once(
    placer: Placer, library: Library
) -> None:
    tensor = torch.zeros(64, 64)
    placer.place(tensor[8:], "fast")
    assert library.placed == [(address(tensor), Placement.FAST)]
    net = torch.nn.Module()
    net.one, net.two = torch.nn.Parameter(tensor), torch.nn.Parameter(tensor[1:])
    placer.place(net, "auto")
    assert library.placed[1:] == [(address(tensor), Placement.AUTO)]


def test_small_tensors_are_left_alone(placer: Placer, library: Library) -> None:
    placer.place(torch.zeros(8), "fast")
    placer.place(torch.nn.Linear(8, 8), "fast")
    assert not library.placed


@pytest.mark.parametrize("tier", ["Fast", "slowest", "", None, 0, ["fast"]])
def test_an_unknown_tier_is_refused_even_without_the_shim(tier: object) -> None:
    for act in (lambda: place(torch.zeros(4096), tier), lambda: placing(tier)):  # type: ignore[arg-type,misc]
        with pytest.raises(ValueError, match=r"no tier is named .*: use 'fast', 'slow' or 'auto'"):
            act()


@pytest.mark.parametrize("what", [[torch.zeros(4096)], "weight", 7, None])
def test_only_tensors_and_modules_are_placed(what: object) -> None:
    with pytest.raises(TypeError, match="cannot be placed: give a tensor or a module"):
        place(what, "fast")


def test_without_the_shim_nothing_happens() -> None:
    place(torch.zeros(4096), "fast")
    place(torch.zeros(4096, device="meta"), "slow")
    with placing("slow"):
        assert torch.zeros(4096).sum() == 0


def test_a_tensor_outside_the_heap_is_named_and_nothing_is_placed(
    placer: Placer, library: Library
) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    library.outside = {address(net[1].weight)}
    with pytest.raises(ValueError, match=r"parameter 1\.weight is not in the shim's heap: .*clone"):
        placer.place(net, "fast")
    assert not library.placed


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.zeros(4096, device="meta"), "the tensor is on device meta: only the pages of CPU"),
        (
            torch.zeros(64, 64).to_sparse(),
            "the tensor has no storage of its own .layout sparse_coo",
        ),
    ],
)
def test_a_tensor_without_pages_is_refused(placer: Placer, tensor: torch.Tensor, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        placer.place(tensor, "fast")


def test_wrapped_tensors_are_placed(placer: Placer, library: Library) -> None:
    class Wrapper(torch.Tensor):
        def __tensor_flatten__(self) -> tuple[list[str], None]:
            return ["inner"], None

    wrapper = torch.zeros(1).as_subclass(Wrapper)
    wrapper.inner = torch.zeros(4096)
    placer.place(wrapper, "slow")
    assert library.placed == [(address(wrapper.inner), Placement.SLOW)]
    library.outside = {address(wrapper.inner)}
    with pytest.raises(ValueError, match=r"^inner of the tensor is not in"):
        placer.place(wrapper, "slow")


def test_contexts_nest_and_end_with_an_exception(placer: Placer, library: Library) -> None:
    with Placing(placer, "slow") as nothing:
        assert nothing is None
        assert library.births == Placement.SLOW
        with contextlib.suppress(KeyError), Placing(placer, "fast"):
            assert library.births == Placement.FAST
            with Placing(placer, "auto"):
                assert library.births == Placement.AUTO
            raise KeyError
        assert library.births == Placement.SLOW
    assert library.births == Placement.AUTO


def test_a_context_decorates_functions_that_call_each_other(
    placer: Placer, library: Library
) -> None:
    @Placing(placer, "fast")
    def recurse(depth: int) -> int:
        return recurse(depth - 1) if depth else library.births

    assert recurse(3) == Placement.FAST
    assert library.births == Placement.AUTO


PLACER = """
from sentineld.model.protocol import NOT_IN_SEQUENCE
from sentineld.shim.op_times import ring_records
from sentineld.shim.placement import Placer, Placing
placer = Placer(lambda: native)
def address(tensor):
    return tensor.untyped_storage().data_ptr()
def placed_records(since=0):
    rows = ring_records(native, since)
    rows = rows[rows["event"] == Event.PLACED]
    return [[int(row["address"]), int(row["value"]), int(row["detail"])] for row in rows]
"""


def test_the_library_keeps_requests_until_the_tensor_is_freed() -> None:
    found = shimmed(
        PLACER
        + """
before = torch.zeros(4096)
placer.place(before, "slow")
with Placing(placer, "fast"):
    born = torch.zeros(8192)
other = torch.zeros(4096)
said = [native.placed(9)]  # born in the current step
native.step_begin()
native.step_end()
said.append(sorted(native.placed(9)))
expected = sorted([(address(before), 2), (address(born), 1)])
changes = native.placement_changes
placer.place(before, "slow")
same = native.placement_changes == changes
placer.place(before, "auto")
said.append(native.placed(9))
del born
said.append(native.placed(9))
more = native.placement_changes - changes
outside = []
file = torch.frombuffer(bytearray(1 << 16), dtype=torch.uint8)
for tensor in (torch.zeros(4096).share_memory_(), file):
    try:
        placer.place(tensor, "fast")
    except ValueError as error:
        outside.append(str(error))
print(json.dumps([said, expected, same, more, outside]))
"""
    )
    said, expected, same, more, outside = found
    assert said == [[], expected, [row for row in expected if row[1] == 1], []]
    assert same
    assert more == 2
    assert len(outside) == 2
    assert all("the tensor is not in the shim's heap" in text for text in outside)


def test_requests_are_recorded_with_the_steps_births() -> None:
    found = shimmed(
        PLACER
        + """
old = torch.zeros(4096)
placer.place(old, "slow")
native.step_begin()
first = torch.zeros(4096)
with Placing(placer, "fast"):
    second = torch.zeros(4096)
placer.place(first, "slow")
placer.place(old, "auto")
native.step_end()
print(json.dumps([placed_records(), [address(one) for one in (old, first, second)]]))
"""
    )
    records, (old, first, second) = found
    none = ctypes.c_uint32(-1).value
    assert records == [
        [old, none, Placement.SLOW],  # recorded at the step's beginning, with all live tensors
        [second, 1, Placement.FAST],
        [first, 0, Placement.SLOW],
        [old, none, Placement.AUTO],
    ]


def test_other_threads_and_forked_children_are_not_affected() -> None:
    found = shimmed(
        PLACER
        + """
import os, threading
native.step_begin()
with Placing(placer, "fast"):
    thread = threading.Thread(target=lambda: globals().update(there=torch.zeros(4096)))
    thread.start()
    thread.join()
    if (child := os.fork()) == 0:
        here = torch.zeros(4096)
        placer.place(here, "auto")
        os._exit(0)
    status = os.waitpid(child, 0)[1]
native.step_end()
native.step_begin()
print(json.dumps([status, native.placed(9), placed_records()]))
"""
    )
    assert found == [0, [], []]
