# SPDX-License-Identifier: Apache-2.0
"""All backends, best first, and the choice of the best one that works."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Any

from sentineld.base.errors import SentinelError
from sentineld.observe.backend import Backend, Target, Watch
from sentineld.observe.damon import DAMON
from sentineld.observe.module import MODULE
from sentineld.observe.pagemap_scan import PAGEMAP_SCAN
from sentineld.observe.shim_only import SHIM_ONLY
from sentineld.observe.softdirty import SOFT_DIRTY

log = logging.getLogger(__name__)

BACKENDS: tuple[Backend, ...] = (MODULE, DAMON, PAGEMAP_SCAN, SOFT_DIRTY, SHIM_ONLY)

_KERNEL_FEATURES = (PAGEMAP_SCAN, SOFT_DIRTY)
"""Backends whose probe tests a feature of the kernel. Such features do not change while the kernel
runs, so each of these backends is probed only once."""


@dataclass(frozen=True)
class BackendStatus:
    """Whether a backend works on this machine."""

    backend: Backend
    problem: SentinelError | None  # why it does not work, with a hint; None: it works

    def to_json(self) -> dict[str, Any]:
        """The status for the control protocol, as values that JSON can represent."""
        return {
            "name": self.backend.name,
            "tells": self.backend.capabilities.summary(),
            "usable": self.problem is None,
            "problem": self.problem.message if self.problem else "",
            "fix": self.problem.hint if self.problem else "",
        }


def survey() -> list[BackendStatus]:
    """Probe every backend; best first."""
    return [
        BackendStatus(each, _feature(each) if each in _KERNEL_FEATURES else each.probe())
        for each in BACKENDS
    ]


def open_best(target: Target) -> tuple[Backend, Watch]:
    """Open the best backend that can watch this process, and log why better ones can't."""
    for backend in BACKENDS[:-1]:
        try:
            return backend, backend.open(target)
        except SentinelError as error:
            log.info("process %d: backend %s is not usable: %s", target.pid, backend.name, error)
    return BACKENDS[-1], BACKENDS[-1].open(target)


@functools.cache
def _feature(backend: Backend) -> SentinelError | None:
    return backend.probe()
