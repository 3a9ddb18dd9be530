# SPDX-License-Identifier: Apache-2.0
"""Page sampling of one session: which memory is armed, and the samples so far."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import numpy.typing as npt

from sentineld.observe.kmodule import PageSampler
from sentineld.observe.model import SAMPLE_DTYPE
from sentineld.observe.shimlink import ShimLink
from sentineld.shim import protocol


class Sampling:
    """Owns the session's device fd. Arms whole spaces and collects samples while armed."""

    def __init__(self, link: ShimLink, log_records: int) -> None:
        """Attach the module and hand the epoch fd to the shim. Raises SentinelError."""
        self._link = link
        self.sampler = PageSampler()
        try:
            self.sampler.attach(link.pid, log_records)
            epoch_fd = self.sampler.epoch_fd()
            try:
                link.send({"type": "epoch_fd"}, [epoch_fd])
            finally:
                os.close(epoch_fd)
        except BaseException:
            self.sampler.close()
            raise
        self._added: dict[int, int] = {}
        self._samples: list[npt.NDArray[np.void]] = []
        self.total = 0
        self.lost = 0

    def arm(self, ranges: list[tuple[int, int]], residency: bool) -> None:
        """Watch (start, bytes) ranges from the next step's begin on, epoch by epoch."""
        for start, size in ranges:
            if self._added.get(start, 0) < size:
                if start in self._added:
                    self.sampler.remove_range(start, self._added[start])
                self.sampler.add_range(start, size)
                self._added[start] = size
            self.sampler.arm(start, size)
        self._samples.clear()
        on = protocol.Flag.EPOCHS | (protocol.Flag.RESIDENCY if residency else 0)
        self._link.set_flags(on=on)

    def collect(self) -> None:
        """Take what the module logged; to be called often enough that its log doesn't fill."""
        samples = self.sampler.drain()
        if len(samples):
            self.total += len(samples)
            self._samples.append(samples)
            self.lost = self.sampler.stats().lost

    def samples(self) -> npt.NDArray[np.void]:
        """All samples since arm(); SAMPLE_DTYPE."""
        return np.concatenate([np.empty(0, SAMPLE_DTYPE), *self._samples])

    def forget_before(self, epoch: int) -> None:
        """Drop samples of epochs that nobody will ask for."""
        self._samples = [part[part["epoch"] >= epoch] for part in self._samples]

    def disarm(self) -> None:
        """Stop sampling; the attachment stays."""
        self._link.set_flags(off=protocol.Flag.EPOCHS | protocol.Flag.RESIDENCY)
        for start, size in self._added.items():
            self.sampler.disarm(start, size)
        self._samples.clear()

    def close(self) -> None:
        """Detach from the process; the kernel disarms what is armed."""
        self._link.set_flags(off=protocol.Flag.EPOCHS | protocol.Flag.RESIDENCY)
        self.sampler.close()
        # An epoch fd in the process, inert as it is now, would keep the module from unloading.
        with contextlib.suppress(EOFError):
            self._link.send({"type": "epoch_fd_close"})
