# SPDX-License-Identifier: Apache-2.0
"""Inputs that fuzzing kept, each run once more: what it has reached, and what it has broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[1] / "fuzz"
ROOT = FUZZ.parents[1]
CORPUS_BYTES_MAX = 300 * 1024


def kept(target: str) -> list[str]:
    files = sorted(str(path) for path in (FUZZ / "corpus" / target).iterdir())
    assert files
    return files


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-4000:]


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C targets with the sanitizers, without the fuzzer."""
    path = tmp_path_factory.mktemp("fuzz")
    compiler = os.environ.get("CC", "cc")
    run("make", "-C", str(FUZZ / "native"), f"OUT={path}", f"CC={compiler}")
    return path


@pytest.mark.parametrize("target", ["layout", "words"])
def test_the_object(binaries: Path, target: str) -> None:
    run(str(binaries / target), *kept(target))


@pytest.mark.parametrize("target", ["daemon", "shim"])
def test_the_protocol(target: str) -> None:
    run(sys.executable, "-m", "tests.fuzz", "replay", target, *kept(target))


def test_it_stays_small() -> None:
    files = [path for path in (FUZZ / "corpus").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= CORPUS_BYTES_MAX
