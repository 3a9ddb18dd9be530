# SPDX-License-Identifier: Apache-2.0
"""Adapts the links of the installed pages: python3 -m docs.installed_pages FOLDER

`make install` puts the README, SECURITY.md and all of docs/ into one folder, so the paths between
them differ from those in the source tree. A link to a file that is not installed, such as
CONTRIBUTING.md, becomes plain text.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\[([^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")


def place(source: Path) -> Path:
    """Where a file of the source tree is in the folder of the installed documentation."""
    return source.relative_to(DOCS) if source.is_relative_to(DOCS) else Path(source.name)


def adapted(source: Path, folder: Path) -> str:
    """The text of a page, with links between the files in the folder."""

    def link(match: re.Match[str]) -> str:
        text, path, anchor = match.groups(default="")
        target = folder / place(Path(os.path.normpath(source.parent / path)))
        if not target.exists():
            return text
        return f"[{text}]({os.path.relpath(target, (folder / place(source)).parent)}{anchor})"

    return LINK.sub(link, source.read_text(encoding="utf-8"))


def main() -> None:
    """Adapt the pages in the folder that the first argument names."""
    folder = Path(sys.argv[1])
    for source in (ROOT / "README.md", ROOT / "SECURITY.md", *DOCS.rglob("*.md")):
        (folder / place(source)).write_text(adapted(source, folder), encoding="utf-8")


if __name__ == "__main__":
    main()
