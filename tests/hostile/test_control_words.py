# SPDX-License-Identifier: Apache-2.0
"""Attack: control words and residency maps that no real training has.

The control words are in the control segment: memory that a training shares with the daemon.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from sentineld.base.errors import SentinelError
from sentineld.control.client import request
from sentineld.model.protocol import Mode
from tests.hostile.attack import Attack, each_kind
from tests.hostile.attacker import Say
from tests.hostile.shim_client import Segment, ShimClient, memfd, registered
from tests.hostile.toy_training import ToyTraining

HUGE = 1 << 38
MOST = (1 << 64) - 1
WORDS: dict[str, dict[str, int]] = {
    "arena": {"arena_bytes": HUGE},
    "most": {"arena_bytes": MOST, "arena_base": MOST, "heap_used": MOST, "heap_live": MOST},
    "heap": {"heap_used": HUGE, "heap_live": HUGE},
    "counters": {"small_bytes": MOST, "fallback_bytes": MOST, "diverged_steps": MOST},
    "time": {"position": MOST, "step": MOST, "layout_id": MOST, "mode": 77},
    "ring": {"ring_head": MOST, "ring_lost": MOST},
}
RING_RECORDS_MAX = 1 << 18
"""Number of records in the largest ring that the daemon accepts. The largest control segment,
16 MiB, has room for more records, but their number must be a power of two."""
TIMES = ("before-attach", "with-the-layout", "while-managed")
ATTACHED, LAYOUT = "the attach succeeded", "took a layout"
REACHED = {"before-attach": ATTACHED, "with-the-layout": LAYOUT, "while-managed": "managed"}
"""For each of TIMES: the state (see lie()) that at least one training must report. If none reports
it, the daemon may not have read the impossible words at this time."""
MANAGED_S = 200.0
"""Time within which a training with valid control words is managed, even on a busy machine."""
STUCK_S = 30.0
"""A training that writes impossible words before it is managed waits at most this long to be
managed: it may never be managed."""


class Lying(ToyTraining):
    """A toy training that writes impossible control words in each step, beginning at `when` (see
    TIMES)."""

    def __init__(self, path: Path, words: dict[str, int], when: str) -> None:
        super().__init__(path)
        self.lies = words
        self.lies_written = 0
        self.has_layout = False
        self.lying = when == "before-attach"
        self._with_layout = when == "with-the-layout"

    def step(self) -> None:
        super().step()
        if self.segment.word("mode") == Mode.REPLAY and self._with_layout:
            self.lying = True
        if self.lying:
            self._lie()

    def _take_layout(self, message: dict[str, Any]) -> None:
        super()._take_layout(message)
        self.has_layout = True
        if self._with_layout:
            self._lie()

    def _lie(self) -> None:
        self.segment.set(**self.lies)
        self.lies_written += 1


def lie(say: Say, paths: tuple[str, str], lies: dict[str, int], when: str, lying_s: float) -> None:
    """Run a toy training that writes impossible control words; report its session's states and how
    often it wrote these words. ATTACHED, LAYOUT and an error that ended the training count as
    states.

    paths: the shims' socket and the control socket.
    """
    shims, control = paths
    pid = os.getpid()
    training = Lying(Path(shims), lies, when)
    states: list[str] = []

    def state() -> str:
        sessions = request(Path(control), "status")["sessions"]
        found = next((str(one["state"]) for one in sessions if one["pid"] == pid), "ended")
        if states[-1:] != [found]:
            states.append(found)
        return found

    try:
        training.run(lambda: state() == "registered")
        request(Path(control), "attach", pid=pid, fast="20%", policy="interleave")
        states.append(ATTACHED)
        begin_s, wait_s = time.monotonic(), MANAGED_S if when == "while-managed" else STUCK_S
        training.run(
            lambda: state() in ("managed", "registered", "ended") or _over(begin_s, wait_s)
        )
        training.lying = True
        begin_s, before = time.monotonic(), training.lies_written
        training.run(
            lambda: (
                state() == "ended" or (training.lies_written > before and _over(begin_s, lying_s))
            )
        )
    except (EOFError, SentinelError, OSError) as error:
        states.append(repr(error))
    if training.has_layout:
        states.append(LAYOUT)
    say([states, training.lies_written])


def _over(begin_s: float, duration_s: float) -> bool:
    return time.monotonic() - begin_s > duration_s


@pytest.mark.parametrize("when", each_kind(TIMES, ("while-managed",)))
def test_impossible_words_cost_no_memory(attack: Attack, when: str) -> None:
    paths = str(attack.daemon.shims), str(attack.daemon.control)
    lying_s = attack.scaled_s(2.0)
    attackers = [attack.start(lie, paths, words, when, lying_s) for words in WORDS.values()]
    reached = set()
    for name, attacker in zip(WORDS, attackers, strict=True):
        states, lies_written = attacker.heard()
        print(f"{name}: {states}, impossible words {lies_written} times")
        assert lies_written > 0
        reached.update(states)
    assert REACHED[when] in reached
    attack.check()


def full_ring(say: Say, path: str, control: str, records: int) -> None:
    """Send a hello with a ring of `records` records, and report the type of the answer.

    If the daemon accepts the hello, fill the ring with new records 19 times, and attach after the
    second time. At the end, report "attached", or the error's code if the attach failed.
    """
    client, segment = ShimClient(Path(path)), Segment(records)
    os.close(client.register(segment))
    answer = client.answer()
    say(str(answer["type"]) if answer else "closed")
    if answer is None or answer["type"] != "welcome":
        return
    attached = "attached"
    for number in range(1, 20):
        segment.set(ring_head=number * records, position=number << 32, step=number)
        if number == 2:
            try:
                request(Path(control), "attach", pid=os.getpid(), fast="20%", policy="interleave")
            except SentinelError as error:
                attached = error.code
        time.sleep(0.1)
    say(attached)
    client.close()


def test_full_rings_of_the_largest_size_cost_no_memory(attack: Attack) -> None:
    paths = str(attack.daemon.shims), str(attack.daemon.control)
    attackers = [attack.start(full_ring, *paths, RING_RECORDS_MAX) for _ in range(2)]
    for attacker in attackers:
        assert attacker.heard() == "welcome"
    for attacker in attackers:
        assert attacker.heard() == "attached"
    attack.hold(5)
    attack.check()


def test_a_larger_ring_is_refused(attack: Attack) -> None:
    paths = str(attack.daemon.shims), str(attack.daemon.control)
    assert attack.start(full_ring, *paths, 2 * RING_RECORDS_MAX).heard() == "refused"
    attack.check()


def large_residency(say: Say, path: str) -> None:
    """Send answers to a layout although the daemon has sent none. Each answer carries a residency
    map of the largest size allowed."""
    client, _ = registered(Path(path))
    sent = 0
    for _ in range(20):
        fd = memfd(1 << 32)
        answer = {"type": "layout", "layout_id": 0, "ok": True, "residency": True}
        # The daemon may close the connection as soon as it has read the first map.
        with contextlib.suppress(ConnectionError):
            client.send(answer, [fd])
            sent += 1
        os.close(fd)
    say(sent)
    client.closed(3)


def test_large_residency_maps_cost_no_memory(attack: Attack) -> None:
    assert attack.start(large_residency, str(attack.daemon.shims)).heard() > 0
    attack.hold(2)
    attack.check()
