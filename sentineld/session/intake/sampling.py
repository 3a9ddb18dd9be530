# SPDX-License-Identifier: Apache-2.0
"""Page sampling of one session: its backend, the armed ranges, and the samples so far.

With the module, epochs begin at the boundaries of the training's steps, and each sample has the
number of its epoch. Every other backend observes a window of whole steps, without epochs.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.base.text import text_of
from sentineld.control.frames import FrameError, Message
from sentineld.model import protocol
from sentineld.model.records import ACCESS_AGAIN, NO_ACCESS, SAMPLE_DTYPE
from sentineld.model.sampled import sampled_page_count
from sentineld.observe.backend import Areas, Backend, Target, Watch
from sentineld.observe.backends import open_best
from sentineld.observe.module import MODULE, ModuleWatch
from sentineld.observe.page_sampler import PageSampler
from sentineld.observe.shim_link import ShimLink
from sentineld.observe.shim_only import SHIM_ONLY
from sentineld.observe.writefds import ReceivedWriteFds, WriteFds
from sentineld.session.intake.sample_memory import ALL_BYTES_MAX, USER_BYTES_MAX, SampleMemory

WAY_CHARACTERS_MAX = 20
REFUSAL_CHARACTERS_MAX = 200
SAMPLES_PER_PAGE_MAX = 8
"""Maximum number of pages that the kept samples may represent, per page of the machine's memory.
This number allows a sample of each page in each of 8 stretches. The limit is needed because a
process can begin any number of epochs, and each epoch adds samples. This number limits the time
that evaluating the samples takes; SampleMemory limits their memory."""
REPEATS_PER_PAGE_MAX = 1
"""If the kept samples represent more than this number of pages per page of the machine's memory, or
need too much memory, repeated accesses to a page in an epoch are dropped. The profile still has the
first access to each page in each epoch."""
MEMORY = SampleMemory(USER_BYTES_MAX, ALL_BYTES_MAX)
"""Limits the samples of all sessions of the daemon."""


@dataclass(frozen=True)
class SampledPages:
    """The page accesses that a backend sampled. Only the module reports `samples`, each with its
    epoch. With any other backend `samples` is empty: the pages that it observed are in `areas`."""

    backend: Backend
    samples: npt.NDArray[np.void]  # SAMPLE_DTYPE
    areas: Areas | None  # None: the module sampled, or no pages were sampled
    lost: int = 0  # number of records of accesses that the module lost since arm()
    whole: bool = True  # whether all pages of the step's tensors were watched, without a gap
    problem: SentinelError | None = None  # why page sampling was given up; see Sampling.problem

    @property
    def incomplete(self) -> bool:
        """Whether accessed pages may lack both a sample and a record that marks them as unknown."""
        return self.lost > 0 or not self.whole


class Sampling:
    """Owns a backend's Watch of the process (observe/backend.py). Watches address ranges and
    collects the accesses to them."""

    def __init__(self, link: ShimLink, backend: Backend, watch: Watch) -> None:
        """From now on, this object owns the watch; it closes the watch if this call fails. If the
        watch uses the module, this call sends the module's epoch fd to the shim. Raises EOFError or
        an error of Peer.require_own()."""
        self.backend = backend
        self._link = link
        self._watch = watch
        self._module = watch if isinstance(watch, ModuleWatch) else None
        self._samples: list[npt.NDArray[np.void]] = []
        self._pages = 0  # number of pages that self._samples represents
        self._repeats = True  # whether repeated accesses to a page in an epoch are kept
        self._lost_before = 0  # value of `lost` at the last arm()
        self._armed = False
        self.total = 0
        self.accesses = 0
        self.lost = 0
        self.problem: SentinelError | None = None
        """The error with which sampling was given up after the last arm(), because there were too
        many samples. The samples were then dropped, and the pages disarmed. None: not given up."""
        try:
            # Check again that the process belongs to the user who connected, because the watch was
            # opened by pid. If the process has called exec() since the last check, the watch
            # belongs to another address space.
            link.peer.require_own()
            if self._module is not None:
                _send_epoch_fd(link, self._module.sampler)
        except BaseException:
            watch.close()
            raise

    @property
    def exact(self) -> bool:
        """Whether epochs begin at boundaries, so that each sample belongs to a known stretch."""
        return self._module is not None

    @property
    def sampler(self) -> PageSampler:
        """The module's sampler. Use this only if the sampling is exact."""
        assert self._module is not None, "only the module samples pages"
        return self._module.sampler

    def arm(self, ranges: list[tuple[int, int]], residency: bool) -> None:
        """Watch (start, bytes) ranges. If the module samples pages, each boundary begins a new
        epoch, from the next step on.

        residency: whether the module also logs, at the beginning of each epoch, how many pages are
        resident on each node.
        """
        self._armed = True
        self.problem = None
        self._clear()
        self._lost_before = self.lost
        if self._module is None:
            self._watch.begin(ranges)
        else:
            self._module.arm(ranges)
            on = protocol.Flag.EPOCHS | (protocol.Flag.RESIDENCY if residency else 0)
            self._link.set_flags(on=on)

    def collect(self) -> None:
        """Drain the module's log, or poll another backend's watch. Call this often, so that the log
        does not overflow. If there are too many samples, give up sampling; see `problem`."""
        if not self._armed:
            return
        if self._module is None:
            self._watch.poll()
            return
        samples = self._module.sampler.drain()
        # Read this number even if there are no samples: it also grows if the module cannot record
        # an access because it could not allocate memory.
        self.lost = self._module.sampler.stats().lost
        if len(samples):
            self.total += len(samples)
            self.accesses += int(np.count_nonzero((samples["flags"] & NO_ACCESS) == 0))
            self._add(samples if self._repeats else _without_repeats(samples))
            del samples  # so that it can be freed
            if self._repeats and self._too_many(REPEATS_PER_PAGE_MAX):
                self._repeats = False
                self._replace(_without_repeats)
            if self._too_many(SAMPLES_PER_PAGE_MAX):
                self._give_up()

    def _too_many(self, pages_per_page: int) -> bool:
        """Whether the kept samples represent too many pages or need too much memory."""
        return self._pages > pages_per_page * _memory_pages() or not MEMORY.fits(self._link.uid)

    def _add(self, samples: npt.NDArray[np.void]) -> None:
        MEMORY.keep(self._link.uid, samples)
        self._samples.append(samples)
        self._pages += sampled_page_count(samples)

    def _replace(self, change: Callable[[npt.NDArray[np.void]], npt.NDArray[np.void]]) -> None:
        """Replace the kept samples, array by array; each array is freed after its replacement."""
        parts, self._samples, self._pages = self._samples[::-1], [], 0
        while parts:
            self._add(change(parts.pop()))

    def _give_up(self) -> None:
        self.disarm()
        self.problem = SentinelError(
            "failed",
            "the steps of the process access more pages than the machine can sample",
            "see docs/troubleshooting.md",
        )

    def samples(self) -> npt.NDArray[np.void]:
        """All samples since arm(); SAMPLE_DTYPE."""
        if len(self._samples) != 1:
            # Free each part after it is copied, to avoid two copies of all samples in memory.
            parts, self._samples = self._samples[::-1], []
            joined = np.empty(sum(map(len, parts)), SAMPLE_DTYPE)
            end = 0
            while parts:
                part = parts.pop()
                joined[end : end + len(part)] = part
                end += len(part)
            MEMORY.keep(self._link.uid, joined)
            self._samples = [joined]
        return self._samples[0]

    def forget_before(self, epoch: int) -> None:
        """Drop the samples of earlier epochs."""
        self._replace(lambda part: part[part["epoch"] >= epoch])

    def finish(self) -> SampledPages:
        """Disarm the pages; returns the page accesses sampled since arm(). With some backends this
        takes seconds. With the module, call collect() first. If sampling was given up, returns
        no accesses, as with the backend `shim`, which observes no pages."""
        if self._module is None:
            self.collect()
        samples, problem = self.samples(), self.problem
        self.disarm()
        if problem is not None:
            return SampledPages(SHIM_ONLY, samples, None, problem=problem)
        if self.exact or self.backend is SHIM_ONLY:
            return SampledPages(self.backend, samples, None, self.lost - self._lost_before)
        return SampledPages(self.backend, samples, self._watch.end())

    def disarm(self) -> None:
        """Stop sampling. The watch stays open until close()."""
        self._link.set_flags(off=protocol.Flag.EPOCHS | protocol.Flag.RESIDENCY)
        if self._module is not None:
            self._module.disarm()
        self._armed = False
        self._clear()

    def _clear(self) -> None:
        self._samples = []
        self._pages = 0
        self._repeats = True

    def close(self) -> None:
        """Stop watching the process; the kernel disarms its pages."""
        self._link.set_flags(off=protocol.Flag.EPOCHS | protocol.Flag.RESIDENCY)
        self._watch.close()
        if self._module is not None:
            # Make the process close its epoch fd. The fd has no effect from now on, but while it is
            # open, the module can't be unloaded.
            with contextlib.suppress(EOFError):
                self._link.send({"type": "epoch_fd_close"})


@dataclass(frozen=True)
class SampleCounts:
    """Counters of the module's samples."""

    taken: int = 0
    accesses: int = 0  # samples of accesses; all other samples have a flag of NO_ACCESS
    lost: int = 0  # samples that the module lost; see SamplerStats

    def plus(self, sampling: Sampling | None) -> SampleCounts:
        """The sum of these counters and the counters of one more sampling."""
        if sampling is None:
            return self
        return SampleCounts(
            self.taken + sampling.total,
            self.accesses + sampling.accesses,
            self.lost + sampling.lost,
        )


class Observing:
    """Opens the sampling of one process when the sampling is first needed; stop() ends the
    sampling.

    Profiling uses sampling(), which chooses the best backend. Requests use exact_sampling(), which
    accepts only the module. All calls but sample_counts() come from the session's thread.
    """

    def __init__(self, link: ShimLink, log_records: int, paged: bool = False) -> None:
        """paged: whether the process is on paged tiers, where the module is not used."""
        self._link = link
        self._log_records = log_records
        self._paged = paged
        self._writes: ReceivedWriteFds | None = None
        self._refusal = WriteFds()
        self._asked = False
        self._sampling: Sampling | None = None
        self._holds_fds = False
        """Whether the open sampling's watch owns the fds that the process sent."""
        self._past = SampleCounts()
        self._past_lock = threading.Lock()

    def prepare(self) -> None:
        """If the module is not used, request the fds by which the process's writes can be watched.

        The process answers each request with fds, but take() accepts only one answer at a time.
        Therefore nothing is requested while an answer is pending, for example after a detach and
        another attach between two steps of the process. The pending answer is valid for the second
        attach, too.
        """
        if self._asked or (not self._paged and MODULE.probe() is None):
            return
        # EOFError means that the process does not read its socket; the session detects this
        # elsewhere.
        with contextlib.suppress(EOFError):
            self._link.send({"type": "watch_writes"})
            self._asked = True

    def take(self, message: Message) -> None:
        """Take the process's answer to prepare().

        An answer that was not requested is ignored. Its descriptors then stay in the connection and
        count towards the connection's limit on descriptors (FDS_MAX)."""
        if not self._asked:
            return
        self._asked = False
        self.close()
        way = text_of(message.get("way", ""), WAY_CHARACTERS_MAX)
        if not way:
            refusal = text_of(message.get("error", ""), REFUSAL_CHARACTERS_MAX)
            self._refusal = WriteFds(refusal=refusal)
            return
        try:
            fds = self._link.connection.take_fds(2)
        except FrameError as error:
            self._refusal = WriteFds(refusal=str(error))
            return
        self._writes = ReceivedWriteFds(self._link.peer, way, fds)

    def sampling(self, rearm_us: int) -> Sampling:
        """The sampling by the best backend that works for this process. Call end_sampling() when
        the sampling has finished.

        rearm_us: interval at which the module arms accessed pages again.
        """
        if self._sampling is not None and self._sampling.exact:
            # exact_sampling() opened this sampling without rearm_us, so open another one below.
            self.stop()
        if self._sampling is None:
            writes = self._refusal if self._writes is None else self._writes.take()
            self._writes = None
            with contextlib.ExitStack() as unused:
                unused.callback(writes.close)
                target = Target(
                    self._link.pid,
                    self._log_records,
                    writes,
                    uid=self._link.uid,
                    start_ticks=self._link.peer.process.start_ticks,
                    rearm_us=rearm_us,
                    paged=self._paged,
                )
                backend, watch = open_best(target)
                self._holds_fds = backend.name == writes.way
                if self._holds_fds:
                    unused.pop_all()  # the watch closes the fds
            self._sampling = Sampling(self._link, backend, watch)
        return self._sampling

    def exact_sampling(self) -> Sampling:
        """The sampling by the module, the only backend that assigns sampled pages to stretches.
        Call this only outside profiling. Raises SentinelError if the module can't be used."""
        # If a sampling is open now, it uses the module, because samplings by other backends end
        # with the profiling.
        if self._sampling is None:
            target = Target(
                self._link.pid, self._log_records, uid=self._link.uid, paged=self._paged
            )
            self._sampling = Sampling(self._link, MODULE, MODULE.open(target))
        return self._sampling

    def collect(self) -> None:
        """Collect the samples of the current Sampling, if there is one; see Sampling.collect()."""
        if self._sampling is not None:
            self._sampling.collect()

    def sample_counts(self) -> SampleCounts:
        """Counters since the session began. May be called from any thread."""
        with self._past_lock:
            return self._past.plus(self._sampling)

    def end_sampling(self) -> None:
        """Stop watching the process's pages after a step was sampled for a profile, or after no
        step could be sampled. This frees the module's log, which takes 16 bytes per record, or
        DAMON, which can watch only one process of the machine at a time. The next call of
        sampling() or exact_sampling() opens a backend again.

        A watch that owns the fds of the process stays open until end_profile(): if no step could be
        sampled, the next attempt needs these fds, which the process sends only once for a profile.
        """
        if not self._holds_fds:
            self.stop()

    def end_profile(self) -> None:
        """Release the resources that only profiling needs, such as write protection."""
        if self._sampling is not None and not self._sampling.exact:
            self.stop()
        self.close()

    def stop(self) -> None:
        """Stop watching the process's pages."""
        if self._sampling is not None:
            self._sampling.close()
            with self._past_lock:
                self._past, self._sampling = self._past.plus(self._sampling), None
            self._holds_fds = False

    def close(self) -> None:
        """Close the fds that the process sent and that were not used."""
        if self._writes is not None:
            self._writes.close()
            self._writes = None


def _without_repeats(samples: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    first: npt.NDArray[np.void] = samples[(samples["flags"] & ACCESS_AGAIN) == 0]
    return first


def _memory_pages() -> int:
    return os.sysconf("SC_PHYS_PAGES")


def _send_epoch_fd(link: ShimLink, sampler: PageSampler) -> None:
    epoch_fd = sampler.epoch_fd()
    try:
        link.send({"type": "epoch_fd"}, [epoch_fd])
    finally:
        os.close(epoch_fd)
