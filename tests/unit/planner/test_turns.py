# SPDX-License-Identifier: Apache-2.0
"""Threads take turns at a limited resource."""

from __future__ import annotations

import threading

import pytest

from sentineld.planner.turns import Turns
from tests.unit.waiting import PATIENCE_S, wait

GREEDY, MODEST = 1000, 1001


class Threads:
    """Threads that each take a turn and hold it until released.

    begun: names of the threads whose turns have begun, in the order in which the turns began.
    """

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.begun: list[str] = []
        self._release: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []

    def start(self, name: str, owner: int) -> None:
        self._release[name] = threading.Event()
        arrived = threading.Event()

        def run() -> None:
            arrived.set()
            with self.turns.turn(owner):
                self.begun.append(name)
                self._release[name].wait()

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()
        arrived.wait()

    def release(self, name: str) -> None:
        self._release[name].set()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_an_owner_with_many_waiting_threads_delays_another_by_one_turn() -> None:
    turns = Turns(1)
    threads = Threads(turns)
    threads.start("greedy 0", GREEDY)
    wait(lambda: threads.begun == ["greedy 0"])
    for number in (1, 2, 3):
        threads.start(f"greedy {number}", GREEDY)
        wait(lambda number=number: turns.waiting() == number)  # type: ignore[misc]
    threads.start("modest", MODEST)
    wait(lambda: turns.waiting() == 4)
    expected = ["greedy 0", "greedy 1", "modest", "greedy 2", "greedy 3"]
    for count, name in enumerate(expected, 1):
        wait(lambda count=count: len(threads.begun) == count)  # type: ignore[misc]
        threads.release(name)
    threads.join()
    assert threads.begun == expected


def test_no_more_threads_than_places_proceed() -> None:
    turns = Turns(2)
    threads = Threads(turns)
    for number in range(3):
        threads.start(str(number), number)
    wait(lambda: len(threads.begun) == 2)
    wait(lambda: turns.waiting() == 1)
    assert len(threads.begun) == 2
    for number in range(3):
        threads.release(str(number))
    threads.join()
    assert len(threads.begun) == 3


def test_an_error_within_a_turn_frees_the_place() -> None:
    turns = Turns(1)
    with pytest.raises(ValueError, match="within"), turns.turn(GREEDY):
        raise ValueError("within")
    with turns.turn(MODEST):
        pass


class Interrupted(threading.Event):
    """An event whose wait is interrupted."""

    def wait(self, timeout: float | None = None) -> bool:
        raise KeyboardInterrupt


def interrupt_a_wait(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Event", Interrupted)
        with pytest.raises(KeyboardInterrupt), turns.turn(GREEDY):
            pass


def test_an_interrupted_wait_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(1)
    with turns.turn(MODEST):
        interrupt_a_wait(turns, monkeypatch)
        assert turns.waiting() == 0
    threads = Threads(turns)
    threads.start("later", MODEST)
    wait(lambda: threads.begun == ["later"])
    threads.release("later")
    threads.join()


def test_an_interrupt_after_the_admission_frees_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(1)
    interrupt_a_wait(turns, monkeypatch)
    threads = Threads(turns)
    threads.start("later", MODEST)
    wait(lambda: threads.begun == ["later"])
    threads.release("later")
    threads.join()
