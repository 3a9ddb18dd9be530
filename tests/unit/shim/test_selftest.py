# SPDX-License-Identifier: Apache-2.0
"""The self-test passes if torch allocates through the shim, and fails if torch does not."""

from __future__ import annotations

import pytest

from tests.unit.shim.shimmed import LOAD, run, shimmed

CHECKS = """
from sentineld.shim.selftest import require_interposed, require_serving
def problem(check, *arguments):
    try: check(*arguments)
    except ShimUnavailableError as error: return str(error)
    return ""
"""


def test_a_library_loaded_before_torch_is_interposed_and_serves_once_enabled() -> None:
    pytest.importorskip("torch")
    found = run(
        LOAD
        + CHECKS
        + """
import torch
before = problem(require_interposed, native, torch), problem(require_serving, native)
native.enable(True)
print(json.dumps([*before, problem(require_serving, native)]))
"""
    )
    assert found == ["", "the script has replaced torch's allocator", ""]


def test_a_library_loaded_after_torch_is_not_interposed() -> None:
    pytest.importorskip("torch")
    found = run(
        "import torch\n"
        + LOAD
        + CHECKS
        + "print(json.dumps(problem(require_interposed, native, torch)))"
    )
    assert found == "this torch does not allocate through c10::alloc_cpu"


def test_the_check_leaves_nothing_allocated() -> None:
    found = shimmed(
        CHECKS
        + """
from sentineld.shim.selftest import SMALL_BYTES_OFFSET
before = native.word(SMALL_BYTES_OFFSET)
require_serving(native)
print(json.dumps(native.word(SMALL_BYTES_OFFSET) - before))
"""
    )
    assert found == 0


def test_the_first_step_without_an_allocation_checks_the_allocator() -> None:
    found = shimmed(
        CHECKS
        + """
from sentineld.shim.selftest import AllocatorCheck
allocator = AllocatorCheck(native)
problems = [problem(allocator.step_ended)]
for serves, allocates in ((True, True), (True, False), (True, True), (False, False)):
    native.step_begin()
    if allocates:
        torch.empty(4096)
    native.step_end()
    native.enable(serves)
    problems.append(problem(allocator.step_ended))
print(json.dumps(problems))
"""
    )
    assert found == ["", "", "", "", "the script has replaced torch's allocator"]
