# SPDX-License-Identifier: Apache-2.0
"""Simulate the points of curves in several processes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context

from sentineld.advise.curve import Point, Question, point_of
from sentineld.base.errors import SentinelError
from sentineld.base.parent import die_with
from sentineld.model.profile import Profile


def usable_cpus() -> int:
    """Number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def simulated_points(
    profile: Profile,
    policy_name: str,
    questions: Sequence[Question],
    with_bound: bool,
    processes: int,
) -> Generator[Point, None, None]:
    """Yield each point when its simulation is complete.

    If `processes` is 1, the points are simulated in this process. Otherwise, child processes are
    used; they are killed if the iterator is closed or if an exception, such as a KeyboardInterrupt,
    ends it. Raises SentinelError if a child process ends unexpectedly.
    """
    if processes == 1:
        for asked in questions:
            yield point_of(profile, policy_name, asked, with_bound)
        return
    others = active_children()
    # Spawn the processes: forked processes would inherit the state of the linear algebra library's
    # threads, but not the threads themselves.
    pool = ProcessPoolExecutor(
        min(processes, max(len(questions), 1)),
        get_context("spawn"),
        _begin,
        (os.getpid(), profile, policy_name, with_bound),
    )
    try:
        with _interrupts_blocked():
            waiting = [pool.submit(_answer, asked) for asked in questions]
        for done in as_completed(waiting):
            yield done.result()
    except BrokenProcessPool:
        raise SentinelError(
            "failed",
            "a process that simulated the step ended unexpectedly, perhaps for lack of memory",
            "use fewer processes: --jobs 1",
        ) from None
    finally:
        for child in active_children():
            if child not in others:
                child.kill()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT, which the terminal sends to all processes of a command. Processes that are
    started within the with statement inherit the signal mask and never receive SIGINT."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker:
    """The arguments of point_of() that are the same for all points. They are sent once, when a
    child process starts, and not with each task, so that the tasks are small. If a task filled the
    executor's pipe, the executor could hang when its processes are killed."""

    profile: Profile
    policy_name: str
    with_bound: bool


def _begin(parent_pid: int, profile: Profile, policy_name: str, with_bound: bool) -> None:
    if not die_with(parent_pid):
        sys.exit("the command ended before its child process began")
    _Worker.profile, _Worker.policy_name, _Worker.with_bound = profile, policy_name, with_bound


def _answer(asked: Question) -> Point:
    return point_of(_Worker.profile, _Worker.policy_name, asked, _Worker.with_bound)
