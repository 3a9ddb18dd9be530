# SPDX-License-Identifier: Apache-2.0
"""Lists the open descriptors of the test process, and limits the number of descriptors."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


def open_descriptors() -> set[str]:
    """Return the numbers of all open descriptors.

    Unreachable objects of earlier tests are collected first: otherwise the garbage collector could
    close their descriptors between two calls. A thread of an earlier test can still close
    descriptors. So a test that looks for leaks checks `open_descriptors() <= before`, not equality.
    """
    gc.collect()
    return set(os.listdir("/proc/self/fd"))


def no_descriptors() -> AbstractContextManager[None]:
    """While this context is active, every call that needs a new descriptor fails with EMFILE."""
    return descriptor_limit(3)  # descriptors 0 to 2 only


@contextmanager
def descriptor_limit(number: int) -> Iterator[None]:
    """While this context is active, new descriptors are lower than `number`; if none is free, calls
    fail with EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
