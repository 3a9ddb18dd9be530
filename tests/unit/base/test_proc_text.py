# SPDX-License-Identifier: Apache-2.0
"""Reading text files of /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.base.proc_text import open_proc_text, read_proc_text

LINE_ENDS = ("\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028")
"""Characters that Python takes for the end of a line, and that the kernel does not escape."""


@pytest.mark.parametrize("end", LINE_ENDS)
def test_only_newlines_end_a_line(tmp_path: Path, end: str) -> None:
    lines = [f"Name:\ta{end.strip(chr(10))}b\n", "Umask:\t0022\n"]
    (tmp_path / "status").write_bytes("".join(lines).encode())
    assert read_proc_text(tmp_path / "status") == "".join(lines)
    with open_proc_text(tmp_path / "status") as file:
        assert list(file) == lines


def test_bytes_that_are_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "maps").write_bytes(b"a\xff\n")
    assert read_proc_text(tmp_path / "maps") == "a\ufffd\n"
    assert read_proc_text(tmp_path / "maps", "surrogateescape") == "a\udcff\n"
