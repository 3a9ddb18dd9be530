# SPDX-License-Identifier: Apache-2.0
"""Standard output stays clean while a C++ library prints."""

from __future__ import annotations

import os

import pytest

from sentineld.base.stdout import silent_stdout


def test_the_solver_s_output_is_discarded(capfd: pytest.CaptureFixture[str]) -> None:
    with silent_stdout():
        os.write(1, b"HiGHS")
    print("an answer")
    assert capfd.readouterr().out == "an answer\n"
