# SPDX-License-Identifier: Apache-2.0
"""Prints debian/changelog: one entry, from CHANGELOG.md and the package's version.

The arguments are the source folder, the date in seconds since 1970, and optionally the version to
print. The default is the package's version if CHANGELOG.md has a section for it. Otherwise, ~DATE
is appended to it, so that the printed version sorts before the release.
"""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path


def releases(changelog: str) -> set[str]:
    """The versions that have a section in a changelog."""
    return set(re.findall(r"^## \[?(\d[^\] ]*)", changelog, re.MULTILINE))


def own_version(source: Path) -> str:
    """The package's version, `__version__` in sentineld/__init__.py."""
    text = (source / "sentineld/__init__.py").read_text()
    found = re.search(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    if found is None:
        raise SystemExit("sentineld/__init__.py has no __version__")
    return found[1]


def debian_version(version: str, released: bool, date: datetime) -> str:
    """The Debian version. An unreleased build sorts before its release and after earlier builds."""
    return version if released else f"{version}~{date:%Y%m%d%H%M%S}"


def entry(source: Path, date: datetime, version: str | None = None) -> str:
    """The text of debian/changelog."""
    own = own_version(source)
    released = own in releases((source / "CHANGELOG.md").read_text())
    version = version or debian_version(own, released, date)
    field = re.search(r"^Maintainer: (.*)$", (source / "systemd/debian/control").read_text(), re.M)
    if field is None:
        raise SystemExit("systemd/debian/control has no Maintainer")
    lines = [f"sentineld ({version}) unstable; urgency=medium", ""]
    if released:
        lines.append(f"  * Release {own}; /usr/share/doc/sentineld/CHANGELOG.md has the changes.")
    else:
        lines.append(f"  * Build of the source tree before release {own}.")
    lines += ["", f" -- {field[1]}  {format_datetime(date)}", ""]
    return "\n".join(lines)


def main() -> None:
    """Print the changelog."""
    date = datetime.fromtimestamp(int(sys.argv[2]), UTC)
    print(entry(Path(sys.argv[1]), date, sys.argv[3] if len(sys.argv) > 3 else None), end="")


if __name__ == "__main__":
    main()
