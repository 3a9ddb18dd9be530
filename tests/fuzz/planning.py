# SPDX-License-Identifier: Apache-2.0
"""Plans in this process: a planning process for each plan would take most of the fuzzer's time."""

from __future__ import annotations

import importlib
from typing import Any

from sentineld.base.errors import SentinelError


def _answer(request: Any, *_: Any) -> Any:
    """The answer, or the error, as the planning process returns it."""
    try:
        return request.answer()
    except SentinelError as error:
        return error


def _answer_or_raise(request: Any, *_: Any) -> Any:
    return request.answer()


def plan_in_this_process() -> None:
    """Replace the start of planning processes from now on."""
    try:
        planners = importlib.import_module("sentineld.planner.planners")
    except ModuleNotFoundError:
        child = importlib.import_module("sentineld.planner.child")
        child._answer_of = _answer_or_raise
    else:
        planners.Planners._run = lambda _, request: _answer(request)
