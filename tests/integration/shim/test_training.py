# SPDX-License-Identifier: Apache-2.0
"""Real trainings, managed by the daemon of daemon_side.py, have the losses of unmanaged ones."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sentineld.model.protocol import Boundary, Event, Mode
from sentineld.model.records import OP_ACCESS_DTYPE
from sentineld.observe.backend import Target
from sentineld.observe.backends import BACKENDS
from tests.integration.shim import daemon_side as side
from tests.integration.shim.daemon_side import Daemon, Training
from tests.integration.shim.place import HERE, Place
from tests.process_figures import waits
from tests.unit.links import received_writes


@pytest.fixture
def place() -> Place:
    """Where these trainings run; tests/vm overrides this fixture."""
    pytest.importorskip("torch")
    return HERE


@pytest.fixture
def daemon(tmp_path: Path, place: Place) -> Iterator[Daemon]:
    peer = Daemon(tmp_path / "shim.sock", place)
    yield peer
    peer.close()
    (tmp_path / "stop").touch()  # ends trainings that still run


def start(daemon: Daemon, tmp_path: Path, *arguments: str) -> Training:
    stop = tmp_path / "stop"
    training = Training(*arguments, socket_path=daemon.path, stop=stop, place=daemon.place)
    daemon.accept()
    return training


def check_losses(training: Training) -> None:
    losses = training.finish()
    assert len(losses) > 5
    assert losses == training.plain_losses(len(losses))


@pytest.mark.parametrize("model", ["cnn", "transformer"])
def test_all_tensors_but_one_are_planned(daemon: Daemon, tmp_path: Path, model: str) -> None:
    training = start(daemon, tmp_path, model)
    slots = side.manage(daemon)
    (step,) = daemon.record(1)
    births = side.births(step)
    base, size = daemon.word("arena_base"), daemon.word("arena_bytes")
    in_arena = (births["address"] >= base) & (births["address"] < base + size)
    planned = slots["flags"] != 0
    assert births["bytes"].tolist() == slots["bytes"].tolist()
    assert in_arena.tolist() == planned.tolist()
    print(f"{model}: {planned.sum()} of {len(slots)} births planned, arena {size} bytes")
    # The only unplanned tensor is the value of a loop variable of train.py (inputs or output). When
    # it is allocated, the value that the previous step left in this variable is still live.
    assert (~planned).sum() == 1
    daemon.wait_steps(20)
    assert daemon.word("mode") == Mode.REPLAY
    assert daemon.word("diverged_steps") == 0
    assert daemon.word("ring_lost") == 0
    check_losses(training)


def test_records_name_layers_and_list_live_tensors(daemon: Daemon, tmp_path: Path) -> None:
    training = start(daemon, tmp_path, "cnn")
    step, _ = side.identical_steps(daemon)
    names = daemon.receive("layers")["names"]
    boundaries = step[step["event"] == Event.BOUNDARY]
    assert boundaries["value"].tolist() == list(range(len(boundaries)))
    assert boundaries["detail"][0] == Boundary.STEP
    passed = [(Boundary(b["detail"]).name, names[b["layer"]]) for b in boundaries]
    forward = [name for kind, name in passed if kind == "FORWARD"]
    backward = [name for kind, name in passed if kind == "BACKWARD"]
    assert forward == ["first.0", "first.1", "act", "second.0", "second.1", "act", "head"]
    assert backward == forward[::-1]
    assert passed[-1][0] == "OPTIMIZER"
    live = step[(step["event"] == Event.ALLOC) & (step["detail"] == side.Alloc.LIVE)]
    head = 16 * 16 * 16 * 10 * 4
    # four tensors: the head's weight, its gradient (freed later by zero_grad), Adam's two moments
    assert (live["bytes"] == head).sum() == 4
    assert len(set(live["address"].tolist())) == len(live)
    daemon.wait_steps(6)
    check_losses(training)


def test_a_change_of_the_thread_count_is_sent(daemon: Daemon, tmp_path: Path) -> None:
    training = start(daemon, tmp_path, "cnn", "--threads-at", "12")
    # The shim sends the hello at torch's import. The script then sets the thread count to 1, which
    # is a change unless torch's default is 1.
    if daemon.hello["threads"] != 1:
        assert daemon.receive("threads")["threads"] == 1
    assert daemon.receive("threads")["threads"] == 2
    daemon.wait_steps(3)
    check_losses(training)


def test_steps_with_another_batch_size_diverge(daemon: Daemon, tmp_path: Path) -> None:
    training = start(daemon, tmp_path, "cnn", "--vary")
    side.manage(daemon)
    daemon.wait_steps(20)
    assert daemon.word("diverged_steps") >= 3
    # The steps after each diverged step follow the layout again.
    assert daemon.word("diverged_in_row") <= 1
    assert daemon.word("layout_id") == 1
    check_losses(training)


def test_smaller_steps_follow_a_layout_with_slack(daemon: Daemon, tmp_path: Path) -> None:
    training = start(daemon, tmp_path, "cnn", "--vary")
    first, second = side.identical_steps(daemon)
    slots, arena_bytes = side.overlay(first, second)
    slots["slack"] = slots["bytes"] // side.protocol.TENSOR_BYTES_MIN - 1
    layout = side.layout_bytes(slots, arena_bytes, side.boundary_count(second))
    assert side.send_layout(daemon, layout)["ok"]
    daemon.wait_steps(3)
    before = daemon.word("diverged_steps")
    found = daemon.record(10)
    assert daemon.word("diverged_steps") == before
    base = daemon.word("arena_base")
    planned = slots["flags"] != 0
    sizes = set()
    for births in map(side.births, found):
        assert births["value"].tolist() == list(range(len(slots)))
        assert (births["bytes"] <= slots["bytes"]).all()
        assert (births["address"] - base)[planned].tolist() == slots["offset"][planned].tolist()
        sizes.add(int(births["bytes"].sum()))
    assert len(sizes) == 2
    # Frees are recorded with the tensors' own sizes, not with the slots' sizes.
    for step in found[1:]:
        born = {(one["value"], one["bytes"]) for one in side.births(step)}
        freed = step[(step["event"] == Event.FREE) & (step["value"] < len(slots))]
        assert {(one["value"], one["bytes"]) for one in freed} <= born
    check_losses(training)


def test_allocations_that_a_layout_calls_optional_may_be_missing(
    daemon: Daemon, tmp_path: Path
) -> None:
    training = start(daemon, tmp_path, "cnn")
    first, second = side.identical_steps(daemon)
    slots, arena_bytes = side.overlay(first, second)
    # Add slots of allocations that never happen: one at the beginning, three in the middle and one
    # at the end. No allocation has the size of these slots.
    missing = np.zeros(1, slots.dtype)
    missing["bytes"], missing["flags"] = side.PAGE + 1, side.protocol.SlotFlag.OPTIONAL
    middle = len(slots) // 2
    slots = np.concatenate([missing, slots[:middle], *[missing] * 3, slots[middle:], missing])
    layout = side.layout_bytes(slots, arena_bytes, side.boundary_count(second))
    assert side.send_layout(daemon, layout)["ok"]
    daemon.wait_steps(3)
    (step,) = daemon.record(1)
    assert daemon.word("mode") == Mode.REPLAY
    assert daemon.word("diverged_steps") == 0
    made = np.flatnonzero(~(slots["flags"] & side.protocol.SlotFlag.OPTIONAL).astype(bool))
    assert side.births(step)["value"].tolist() == made.tolist()
    check_losses(training)


def test_a_wrong_layout_never_overlays_live_tensors(daemon: Daemon, tmp_path: Path) -> None:
    training = start(daemon, tmp_path, "transformer", "--keep")
    first, second = daemon.record(3)[1:]
    # A layout with wrong lifetimes: all tensors at offset 0.
    slots = np.zeros(len(side.births(first)), dtype=side.protocol.SLOT_DTYPE)
    slots["bytes"] = side.births(first)["bytes"]
    slots["flags"] = side.protocol.SlotFlag.PLANNED | side.protocol.SlotFlag.DROP
    arena = -(-int(slots["bytes"].max()) // side.PAGE) * side.PAGE
    answer = side.send_layout(daemon, side.layout_bytes(slots, arena, side.boundary_count(second)))
    assert answer["ok"]
    daemon.wait_steps(10)
    assert daemon.word("diverged_in_row") >= 9
    check_losses(training)


def test_cuts_waits_and_dropped_pages(daemon: Daemon, tmp_path: Path) -> None:
    training = start(daemon, tmp_path, "cnn")
    first, second = side.identical_steps(daemon)
    slots, arena = side.overlay(first, second)
    slots["flags"][slots["flags"] != 0] = (
        side.protocol.SlotFlag.PLANNED | side.protocol.SlotFlag.DROP
    )
    cuts = (0, len(slots) // 2, len(slots) - 1)
    count = side.boundary_count(first) + len(cuts)
    data = side.layout_bytes(
        slots, arena, count, cuts=cuts, regions=((0, arena, 0),), heap_node=0, waits=((1, 0, 1),)
    )
    assert side.send_layout(daemon, data)["ok"]
    daemon.wait_steps(3)
    (step,) = daemon.record(1)
    boundaries = step[step["event"] == Event.BOUNDARY]
    assert len(boundaries) == count
    cut = boundaries[boundaries["detail"] == Boundary.CUT]
    assert tuple(cut["bytes"].tolist()) == cuts
    daemon.wait_steps(10)
    assert daemon.word("diverged_steps") == 0
    # No move is reported as done, so boundary 1 waits for the moves of boundary 0 until the
    # time-out.
    daemon.set("barrier_timeout_ns", 20_000_000)
    daemon.set("moves_done", 0)
    side.wait_for(lambda: daemon.word("barrier_timeouts") == 1)
    daemon.wait_steps(5)
    assert daemon.word("barrier_timeouts") == 1
    assert daemon.word("barrier_wait_ns") >= 20_000_000
    check_losses(training)


def stopped_position(training: Training, daemon: Daemon, any_boundary: bool = False) -> int:
    """Stop the training and return its position (step << 32 | boundary). If it has stopped at
    boundary 1 and any_boundary is false, let it run for a step and stop it again."""
    while True:
        training.process.send_signal(signal.SIGSTOP)
        os.waitpid(training.process.pid, os.WUNTRACED)
        position = daemon.word("position")
        if any_boundary or position & 0xFFFFFFFF != 1:
            return position
        training.process.send_signal(signal.SIGCONT)
        daemon.wait_steps(1)


def is_held(training: Training, daemon: Daemon) -> bool:
    """Check that the training is held at boundary 1 for a second, and rarely wakes up; then let it
    continue. Returns False if a barrier did not wait because the heartbeat was stale."""
    timeouts = daemon.word("barrier_timeouts")
    step, boundary = divmod(stopped_position(training, daemon), 1 << 32)
    held = ((step + (boundary > 1)) << 32) + 1
    # `held` is boundary 1 of this step or, if the training has passed that, of the next step. The
    # moves of boundary 0 of the same step are not reported as done, so boundary 1 waits for them.
    # All earlier moves are reported as done. Otherwise, if a barrier did not wait in an earlier
    # call of this function, the shim would skip all barriers until that barrier's moves are done.
    daemon.set("moves_done", held - 2)
    training.process.send_signal(signal.SIGCONT)
    side.wait_for(
        lambda: daemon.word("position") == held or daemon.word("barrier_timeouts") > timeouts
    )
    # In a long wait, the shim wakes up rarely, because the daemon may need the CPU for the moves.
    time.sleep(0.5)
    before, began_s = waits(training.process.pid), time.monotonic()
    time.sleep(0.5)
    found, during_s = waits(training.process.pid) - before, time.monotonic() - began_s
    position = stopped_position(training, daemon, any_boundary=True)
    was_held = daemon.word("barrier_timeouts") == timeouts
    if was_held:
        assert position == held
        assert found < 1000 * during_s
    daemon.set("moves_done", 2**64 - 1)
    training.process.send_signal(signal.SIGCONT)
    daemon.wait_steps(3)
    return was_held


def test_a_barrier_holds_until_the_moves_are_done(daemon: Daemon, tmp_path: Path) -> None:
    training = start(daemon, tmp_path, "cnn")
    daemon.set("barrier_timeout_ns", 60_000_000_000)
    side.manage(daemon, waits=((1, 0, 1),))
    # On a busy machine, this process may not get a CPU for two seconds, after which its heartbeat
    # is stale.
    assert any(is_held(training, daemon) for _ in range(5))
    check_losses(training)


def test_layout_and_session_outlive_the_daemon(daemon: Daemon, tmp_path: Path) -> None:
    training = start(daemon, tmp_path, "transformer")
    side.manage(daemon)
    arena = daemon.word("arena_base")
    daemon.close()
    following = Daemon(daemon.path)
    hello = following.accept()
    assert (hello["layout_id"], hello["session"]) == (1, "s1")
    assert following.word("arena_base") == arena
    following.wait_steps(3)
    assert following.word("mode") == Mode.REPLAY
    following.send({"type": "detach"})
    side.wait_for(lambda: following.word("mode") == Mode.DORMANT)
    following.wait_steps(3)
    assert following.word("arena_base") == 0
    check_losses(training)
    following.close()


@pytest.mark.parametrize("workers", ["2", pytest.param("32", marks=pytest.mark.long)])
def test_forked_workers_do_not_disturb_the_parent(
    daemon: Daemon, tmp_path: Path, workers: str
) -> None:
    training = start(daemon, tmp_path, "cnn", "--workers", workers)
    side.manage(daemon)
    daemon.wait_steps(25)  # several passes over the data, each of 8 steps and with new workers
    assert daemon.word("layout_id") == 1
    check_losses(training)


def test_garbage_only_costs_the_connection(daemon: Daemon, tmp_path: Path) -> None:
    training = start(daemon, tmp_path, "cnn")
    for garbage in (
        b"\xff\xff\xff\xff",
        b"\x02\0\0\0[]",
        b"\x03\0\0\0\xff\xfe!",
        b"\x0f\0\0\0" + b'{"type":"what"}',
        b"\x13\0\0\0" + b'{"type":"epoch_fd"}',
        b"\x80\x38\x01\0" + b"[" * 80000,
    ):
        daemon.send_raw(garbage)
        assert daemon.hung_up()
        assert daemon.accept()["type"] == "hello"
    daemon.wait_steps(6)
    check_losses(training)


def test_the_epoch_fd_is_closed_with_the_connection(daemon: Daemon, tmp_path: Path) -> None:
    """If the shim kept the epoch fd open, the kernel module could not be unloaded."""
    training = start(daemon, tmp_path, "cnn")
    kept, given = os.pipe()
    daemon.send({"type": "epoch_fd"}, (given,))
    os.close(given)
    daemon.wait_steps(6)
    poll = select.poll()
    poll.register(kept, 0)  # POLLHUP is reported without being requested
    assert not poll.poll(0)
    daemon.close()
    assert poll.poll(side.PATIENCE_SECONDS * 1000)
    os.close(kept)
    check_losses(training)


def test_bad_layouts_change_nothing(daemon: Daemon, tmp_path: Path) -> None:
    training = start(daemon, tmp_path, "cnn")
    first, second = side.identical_steps(daemon)
    slots, arena = side.overlay(first, second)
    count = side.boundary_count(first)
    good = side.layout_bytes(slots, arena, count)
    outside = slots.copy()
    planned = int(np.flatnonzero(slots["flags"])[0])
    outside["offset"][planned] = arena
    unaligned = slots.copy()
    unaligned["offset"][planned] += 1
    bad = [
        good[:50],
        b"\0" * len(good),
        good[:-8],
        side.layout_bytes(outside, arena, count),
        side.layout_bytes(unaligned, arena, count),
        side.layout_bytes(slots, arena, count, cuts=(5, 5)),
        side.layout_bytes(slots, arena, count, regions=((0, arena + side.PAGE, 0),)),
        side.layout_bytes(slots, arena, count, regions=((0, arena, 1000),)),
        side.layout_bytes(slots, arena, count, heap_node=1000),
        side.layout_bytes(slots, arena, count, waits=((0, count, 1),)),
        good[:8] + (side.protocol.SHIM_VERSION - 1).to_bytes(4, "little") + good[12:],
    ]
    for data in bad:
        answer = side.send_layout(daemon, data)
        assert not answer["ok"]
        assert answer["error"]
    assert daemon.word("layout_id") == 0
    assert side.send_layout(daemon, good)["ok"]
    check_losses(training)


@pytest.mark.parametrize("model", ["cnn", "transformer"])
def test_accesses_lie_in_live_tensors(daemon: Daemon, tmp_path: Path, model: str) -> None:
    training = start(daemon, tmp_path, model)
    before, _ = side.identical_steps(daemon)
    daemon.drain()
    daemon.flags(side.Flag.RECORD)
    daemon.send({"type": "profile_ops"})
    message = daemon.receive("accesses")
    descriptor = daemon.take_descriptor()
    rows = np.frombuffer(os.pread(descriptor, 1 << 26, 0), dtype=OP_ACCESS_DTYPE)
    os.close(descriptor)
    daemon.flags(0)
    daemon.wait_steps(2)
    records = daemon.drain()
    starts = np.flatnonzero(records["event"] == Event.STEP)
    numbers = records["bytes"][starts].tolist()
    at = numbers.index(message["step"])
    step = records[starts[at] : starts[at + 1]]
    assert len(rows) == message["count"] > 100
    assert side.sequence(step) == side.sequence(before)
    alive: dict[int, int] = {}
    outside = untouched = 0
    touched: set[int] = set()
    position = 0
    for row in rows:
        while position < len(step) and step["time_ns"][position] <= row["time_ns"]:
            record = step[position]
            address = int(record["address"])
            if record["event"] == Event.ALLOC:
                alive[address] = int(record["bytes"])
                touched.discard(address)
            elif record["event"] == Event.FREE:
                del alive[address]
                born_here = record["value"] != side.protocol.NOT_IN_SEQUENCE
                untouched += born_here and address not in touched
            position += 1
        address = int(row["address"])
        touched.add(address)
        outside += alive.get(address, 0) < row["bytes"]
    print(f"{model}: {len(rows)} rows, {outside} outside live tensors, {untouched} never touched")
    assert outside == 0
    assert untouched == 0
    check_losses(training)


def test_writes_are_tracked_by_descriptors_of_the_process(daemon: Daemon, tmp_path: Path) -> None:
    training = start(daemon, tmp_path, "cnn")
    daemon.send({"type": "watch_writes"})
    way = daemon.receive("writes")["way"]
    fds = [daemon.take_descriptor(), daemon.take_descriptor()]
    pid = training.process.pid
    writes = received_writes(pid, way, fds)
    assert writes.way == way, writes.refusal
    backend = next(one for one in BACKENDS if one.name == way)
    watch = backend.open(Target(pid, writes=writes))
    heap = (daemon.word("heap_base"), daemon.word("heap_used"))
    watch.begin([heap])
    (step,) = daemon.record(1)
    areas = watch.end()
    watch.close()
    begin = areas["start"].astype(np.int64)
    end = begin + areas["bytes"].astype(np.int64)
    assert np.all(begin >= heap[0])
    assert np.all(end <= heap[0] + heap[1])
    # The optimizer writes every byte of each parameter and its moments; batches are only read.
    live = step[(step["event"] == Event.ALLOC) & (step["detail"] == side.Alloc.LIVE)]
    head = live[live["bytes"] == 16 * 16 * 16 * 10 * 4]
    assert len(head) >= 3
    for address, size in zip(head["address"].tolist(), head["bytes"].tolist(), strict=True):
        inside = np.minimum(end, address + size) - np.maximum(begin, address)
        assert inside[inside > 0].sum() == size
    daemon.wait_steps(5)
    check_losses(training)
