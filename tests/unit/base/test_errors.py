# SPDX-License-Identifier: Apache-2.0
"""Errors keep their code, message and hint on the way to the user."""

from __future__ import annotations

import pickle

import pytest

from sentineld.base.errors import EXIT_STATUS, SentinelError


@pytest.mark.parametrize("code", EXIT_STATUS)
def test_an_error_crosses_a_process_with_all_parts(code: str) -> None:
    error = pickle.loads(pickle.dumps(SentinelError(code, "no room", "free some")))
    assert (error.code, error.message, error.hint) == (code, "no room", "free some")
    assert error.exit_status == EXIT_STATUS[code]


def test_the_hint_follows_the_message_in_parentheses() -> None:
    assert str(SentinelError("failed", "no room", "free some")) == "no room (free some)"
    assert str(SentinelError("failed", "no room")) == "no room"


def test_a_code_without_an_exit_status_is_refused() -> None:
    with pytest.raises(ValueError, match="'no-such-code'"):
        SentinelError("no-such-code", "no room")


def test_each_code_has_its_own_exit_status_that_no_signal_has() -> None:
    statuses = sorted(EXIT_STATUS.values())
    assert statuses == sorted(set(statuses))
    assert all(0 < status < 126 for status in statuses)
