# SPDX-License-Identifier: Apache-2.0
"""The output of a C++ library to standard output is discarded; the program's own output is kept."""

from __future__ import annotations

import os
import sys

import pytest

from sentineld.base.stdout import silent_stdout
from tests.unit.descriptors import open_descriptors


def test_the_solver_s_output_is_discarded(capfd: pytest.CaptureFixture[str]) -> None:
    with silent_stdout():
        os.write(1, b"HiGHS")
    print("an answer")
    assert capfd.readouterr().out == "an answer\n"


def test_the_output_comes_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        os.write(1, b"before the error")
        raise RuntimeError

    with pytest.raises(RuntimeError), silent_stdout():
        fail()
    os.write(1, b"after it")
    assert capfd.readouterr().out == "after it"


def test_what_python_has_buffered_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    sys.stdout.write("buffered before")
    with silent_stdout():
        os.write(1, b"HiGHS")
    sys.stdout.flush()
    assert capfd.readouterr().out == "buffered before"


def test_no_descriptor_stays_open() -> None:
    before = open_descriptors()
    with silent_stdout():
        pass
    assert open_descriptors() <= before
