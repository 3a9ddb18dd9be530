# SPDX-License-Identifier: Apache-2.0
"""The journal's catalog and the page about the log agree with the code."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sentineld.base.log_events import LogEvent

ROOT = Path(__file__).parents[3]
CATALOG = ROOT / "systemd/sentineld.catalog"
EVENTS = {event.value for event in LogEvent}
SUBJECTS = dict(re.findall(r"^-- ([0-9a-f]{32})\nSubject: (.+)$", CATALOG.read_text(), re.M))


def test_the_catalog_explains_each_kind_of_line() -> None:
    assert SUBJECTS.keys() == EVENTS


def test_the_page_lists_each_kind_of_line() -> None:
    page = (ROOT / "docs/reference/log.md").read_text()
    rows = dict(re.findall(r"^\| `([0-9a-f]{32})` \| (.+) \|$", page, re.M))
    subjects = {event: text.replace("@SENTINELD_PID@", "N") for event, text in SUBJECTS.items()}
    assert rows == subjects


def test_each_kind_is_logged() -> None:
    sources = [path.read_text() for path in (ROOT / "sentineld").rglob("*.py")]
    named = {name for source in sources for name in re.findall(r"LogEvent\.([A-Z_]+)\b", source)}
    assert named == set(LogEvent.__members__)


def test_the_catalogs_fields_exist() -> None:
    page = (ROOT / "docs/reference/log.md").read_text()
    for field in set(re.findall(r"@(\w+)@", CATALOG.read_text())):
        assert f"`{field}`" in page


@pytest.mark.skipif(shutil.which("journalctl") is None, reason="systemd is not installed")
def test_systemd_reads_the_catalog(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib/systemd/catalog"
    folder.mkdir(parents=True)
    shutil.copy(CATALOG, folder)
    (tmp_path / "var/lib/systemd/catalog").mkdir(parents=True)
    done = subprocess.run(
        ["journalctl", f"--root={tmp_path}", "--update-catalog"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    command = ["journalctl", f"--root={tmp_path}", "--list-catalog"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^([0-9a-f]{32}) sentineld: (.+)$", listed, re.M)
    assert dict(found) == SUBJECTS
