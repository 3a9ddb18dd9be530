# SPDX-License-Identifier: Apache-2.0
"""Advice about memory of a real process. Without swap, the kernel accepts the advice, but keeps
the pages in memory; tests/integration/test_temperature.py uses swap."""

from __future__ import annotations

import os

import numpy as np
import pytest

from sentineld.migrate.advice import VECTOR_MAX, Advice, advise, require_advice
from sentineld.model.records import PAGE_BYTES, PAGE_RUN_DTYPE
from tests.unit.block_process import block_process

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs CAP_SYS_NICE")


def test_ranges_without_mappings_are_skipped() -> None:
    with block_process() as process:
        pidfd = os.pidfd_open(process.pid)
        first = process.address // PAGE_BYTES
        rows = [(first + 2 * index, 1, True) for index in range(VECTOR_MAX - 100)]
        rows[3:3] = [(1, 2, True)]
        rows[500:500] = [(1, 2, True)] * 200
        runs = np.array(rows, PAGE_RUN_DTYPE)
        for advice in Advice:
            advise(pidfd, process.pid, runs, advice)
        process.run("assert bytes(block) == bytes([1]) * len(block)")
        assert process.process.poll() is None
        os.close(pidfd)


def test_after_the_exit_the_process_is_gone() -> None:
    with block_process() as process:
        pidfd = os.pidfd_open(process.pid)
        require_advice(pidfd, process.pid)
    with pytest.raises(ProcessLookupError):
        require_advice(pidfd, process.pid)
    runs = np.array([(1, 1, True)], PAGE_RUN_DTYPE)
    with pytest.raises(ProcessLookupError):
        advise(pidfd, process.pid, runs, Advice.PAGE_OUT)
    os.close(pidfd)
