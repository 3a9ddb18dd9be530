# SPDX-License-Identifier: Apache-2.0
"""The stamp of a package's files."""

from __future__ import annotations

from pathlib import Path

from sentineld.planner.code_stamp import code_stamp


def test_the_stamp_differs_if_a_file_is_added_replaced_or_removed(tmp_path: Path) -> None:
    folder = tmp_path / "planner"
    folder.mkdir()
    (folder / "child.py").write_text("one = 1\n")
    stamps = [code_stamp(tmp_path)]
    assert code_stamp(tmp_path) == stamps[0]
    (folder / "child.pyc").write_text("bytecode\n")
    assert code_stamp(tmp_path) == stamps[0]
    (folder / "other.py").write_text("")
    stamps.append(code_stamp(tmp_path))
    (folder / "new").write_text("two = 2\n")
    (folder / "new").rename(folder / "child.py")
    stamps.append(code_stamp(tmp_path))
    (folder / "other.py").unlink()
    stamps.append(code_stamp(tmp_path))
    assert len(set(stamps)) == 4
