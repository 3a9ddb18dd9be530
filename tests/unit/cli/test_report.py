# SPDX-License-Identifier: Apache-2.0
"""`sentinelctl report` on a trace file."""

from __future__ import annotations

import io
import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from sentineld.base.errors import SentinelError
from sentineld.cli.main import sentinelctl
from sentineld.model.records import SAMPLE_DTYPE
from sentineld.profile.trace import profile_of
from sentineld.profile.trace_file import save_trace
from tests.sentinelctl import SENTINELCTL, refused
from tests.unit.traces import recorded


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "it.npz"
    save_trace(recorded(), path)
    return path


def run(*arguments: str | Path) -> Result:
    # The socket does not exist, because none of these commands may contact a daemon.
    command = ["--socket", "/nonexistent", "report", *map(str, arguments)]
    return CliRunner().invoke(sentinelctl, command, env={"COLUMNS": "160"})


def output(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def values(*arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output(*arguments))
    assert found["schema"] == 1
    return found


def test_the_default_report_is_the_summary(trace: Path) -> None:
    assert "process 4242" in output(trace)
    assert values(trace, "summary", "--json")["coverage"]["source"] == "module+shim"


def test_tensors_are_listed_in_the_requested_order(trace: Path) -> None:
    lines = output(trace, "tensors", "--top", "5").splitlines()
    assert lines[0].split()[:3] == ["NAME", "KIND", "BYTES"]
    assert len(lines) == 7
    assert lines[-1].startswith("and ")
    found = values(trace, "tensors", "--sort", "hotness", "--top", "2", "--json")
    assert found["count"] == len(profile_of(recorded()).tensors)
    hottest, second = found["tensors"]
    assert hottest["hotness"] >= second["hotness"] > 0
    assert "0.weight0" in output(trace, "tensors", "--sort", "name")


def test_heatmap_has_the_requested_rows(trace: Path) -> None:
    text = output(trace, "heatmap", "--rows", "7")
    assert text.count("│") == 7
    assert "█" in text
    found = values(trace, "heatmap", "--rows", "7", "--json")
    assert len(found["accessed"]) == len(found["addresses"]) == 7


def test_timeline_adds_up_to_the_peak(trace: Path) -> None:
    assert "parameter" in output(trace, "timeline")
    found = values(trace, "timeline", "--json")
    totals = [sum(column) for column in zip(*found["live_bytes"].values(), strict=True)]
    assert max(totals) == found["peak_bytes"]
    assert len(totals) == len(found["times_ns"])


def test_heatmap_and_timeline_are_drawn_to_files(trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for verb in ("heatmap", "timeline"):
        path = tmp_path / f"{verb}.svg"
        assert output(trace, verb, "-o", path) == f"wrote {path}\n"
        assert "layer" in path.read_text() or verb == "timeline"


def test_trace_export_merges_a_profiler_trace(trace: Path, tmp_path: Path) -> None:
    written = values(trace, "trace-export", "-o", tmp_path / "it.json", "--json")
    assert len(json.loads((tmp_path / "it.json").read_text())["traceEvents"]) == written["events"]
    beside = output(
        trace, "trace-export", "-o", tmp_path / "both.json", "--beside", tmp_path / "it.json"
    )
    assert f"{written['events']} from the profiler" in beside


def test_a_page_is_written_with_and_without_a_plan(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "it.html"
    assert output(trace, "html", "-o", path) == f"wrote {path}\n"
    page = path.read_text()
    assert "0.weight0" in page
    assert '"plan":null' in page
    options = ("--policy", "sentinel", "--tiers", "optane", "--fast", "40%")
    assert values(trace, "html", "-o", path, *options, "--json")["file"] == str(path)
    assert '"policy":"sentinel"' in path.read_text()


def test_a_page_is_refused_before_the_plan_is_made(trace: Path, tmp_path: Path) -> None:
    error = run(trace, "html", "-o", tmp_path / "none" / "it.html", "--policy", "auto").exception
    assert isinstance(error, SentinelError)
    assert "there is no folder" in error.message
    error = run(trace, "html", "-o", tmp_path / "it.html", "--policy", "best").exception
    assert isinstance(error, SentinelError)
    assert error.code == "unknown-policy"
    assert not (tmp_path / "it.html").exists()


@pytest.mark.parametrize("verb", [[], ["tensors"], ["heatmap"], ["timeline"]])
def test_a_file_that_is_not_a_trace_is_an_error(tmp_path: Path, verb: list[str]) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("buy milk")
    error = run(file, *verb).exception
    assert isinstance(error, SentinelError)
    assert "notes.txt is not a usable trace" in error.message


ZEROS = bytes(1 << 24)


class Sparse(io.FileIO):
    """A sparse file: instead of writing ZEROS, it leaves a hole of the same size."""

    def write(self, data: Any) -> int:
        if data != ZEROS:
            return super().write(data)
        self.seek(len(data), os.SEEK_CUR)
        return len(data)


TWO_GB = 2 << 30
MEMORY_BYTES = 3 << 29


def test_a_trace_larger_than_the_memory_is_refused(trace: Path, tmp_path: Path) -> None:
    """A valid file whose table of samples has 2 GiB. The process that reads it is limited to an
    address space of 1.5 GiB."""
    large = tmp_path / "large.npz"
    with (
        zipfile.ZipFile(trace) as small,
        Sparse(large, "w") as file,
        zipfile.ZipFile(file, "w") as archive,
    ):
        for name in small.namelist():
            with archive.open(name, "w", force_zip64=True) as member:
                if name != "samples.npy":
                    member.write(small.read(name))
                    continue
                header = {"descr": np.lib.format.dtype_to_descr(SAMPLE_DTYPE)}
                shape = (TWO_GB // SAMPLE_DTYPE.itemsize,)
                np.lib.format.write_array_header_1_0(
                    member, header | {"fortran_order": False, "shape": shape}
                )
                for _ in range(TWO_GB // len(ZEROS)):
                    member.write(ZEROS)
    assert large.stat().st_size > TWO_GB > 1000 * large.stat().st_blocks
    done = subprocess.run(
        ["prlimit", f"--as={MEMORY_BYTES}", *SENTINELCTL, "report", str(large)],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        timeout=120,
    )
    assert "it needs more memory than there is" in refused(done, "failed")
