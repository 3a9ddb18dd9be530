# SPDX-License-Identifier: Apache-2.0
"""Replays the fuzzing corpus: inputs that reached new code or once crashed a target."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.shim.paged import pager_problem

paged = pytest.mark.skipif(pager_problem() is not None, reason=pager_problem() or "")

FUZZ = Path(__file__).parents[1] / "fuzz"
ROOT = FUZZ.parents[1]
CORPUS_BYTES_MAX = 300 * 1024


def corpus(target: str) -> list[str]:
    files = sorted(str(path) for path in (FUZZ / "corpus" / target).iterdir())
    assert files
    return files


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-4000:]


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C targets, built with sanitizers and without the fuzzer."""
    path = tmp_path_factory.mktemp("fuzz")
    compiler = os.environ.get("CC", "cc")
    run("make", "-C", str(FUZZ / "native"), f"OUT={path}", f"CC={compiler}")
    return path


@pytest.mark.parametrize("target", ["layout", "words"])
def test_the_shim_library_survives_its_corpus(binaries: Path, target: str) -> None:
    run(str(binaries / target), *corpus(target))


@paged
def test_the_pager_survives_its_corpus(binaries: Path) -> None:
    run(str(binaries / "moves"), *corpus("moves"))


@pytest.mark.parametrize("target", ["daemon", pytest.param("paged", marks=paged), "shim"])
def test_the_protocol_code_survives_its_corpus(target: str) -> None:
    run(sys.executable, "-m", "tests.fuzz", "replay", target, *corpus(target))


def test_the_corpus_stays_small() -> None:
    files = [path for path in (FUZZ / "corpus").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= CORPUS_BYTES_MAX
