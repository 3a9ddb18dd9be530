# SPDX-License-Identifier: Apache-2.0
"""The order of the backends, and the choice of the best backend that opens."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from sentineld.base.errors import SentinelError
from sentineld.observe import backends
from sentineld.observe.backend import Backend, Target, Watch
from sentineld.observe.damon import DAMON
from sentineld.observe.module import MODULE
from sentineld.observe.pagemap_scan import PAGEMAP_SCAN
from sentineld.observe.shim_only import SHIM_ONLY, NoWatch
from sentineld.observe.softdirty import SOFT_DIRTY

PAGE = 4096


def test_the_order_is_best_first() -> None:
    expected = (MODULE, DAMON, PAGEMAP_SCAN, SOFT_DIRTY, SHIM_ONLY)
    assert expected == backends.BACKENDS
    assert SHIM_ONLY.probe() is None  # the fallback always works


def test_the_next_backend_is_used_if_one_does_not_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []

    def refusing(name: str) -> Backend:
        def open_(target: Target) -> Watch:
            tried.append(name)
            raise SentinelError("failed", f"no {name} for {target.pid}")

        return replace(MODULE, name=name, open=open_)

    working = replace(MODULE, name="c", open=NoWatch)
    never = replace(MODULE, name="d", open=NoWatch)
    monkeypatch.setattr(backends, "BACKENDS", (refusing("a"), refusing("b"), working, never))
    backend, watch = backends.open_best(Target(os.getpid()))
    assert backend.name == "c"
    assert isinstance(watch, NoWatch)
    assert tried == ["a", "b"]
