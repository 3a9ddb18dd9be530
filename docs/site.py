# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation site from the Markdown pages: `make site`.

    python -m docs.site OUTPUT      # needs sphinx, furo and myst-parser

The pages are also read in the source tree, so their links are paths between files of the tree. The
sources of the site therefore have the same paths. stage() copies the pages, and the files to which
they link, into a folder, and adds the navigation. Sphinx then builds the site from this folder; the
README is the front page. Each warning of Sphinx counts as an error, for example a warning about a
link to a file or heading that does not exist, or about a page that is missing from the navigation.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]

NAVIGATION: dict[str, tuple[str, ...]] = {
    "Start": (
        "docs/tutorial.md",
        "docs/tutorial-packages.md",
        "docs/how-to.md",
        "docs/troubleshooting.md",
    ),
    "How to": (
        "docs/how-to/install.md",
        "docs/how-to/train.md",
        "docs/how-to/cxl.md",
        "docs/how-to/optane.md",
        "docs/how-to/ssd.md",
        "docs/how-to/emulated.md",
        "docs/how-to/any-process.md",
        "docs/how-to/container.md",
        "docs/how-to/without-module.md",
        "docs/how-to/record.md",
        "docs/how-to/advise.md",
        "docs/how-to/own-policy.md",
        "docs/how-to/fleet.md",
        "docs/how-to/slurm.md",
        "docs/how-to/kubernetes.md",
        "docs/how-to/monitor.md",
    ),
    "Reference": (
        "docs/reference/cli.md",
        "docs/reference/messages.md",
        "docs/config.md",
        "docs/metrics.md",
        "docs/reference/log.md",
        "docs/reference/protocol.md",
        "docs/reference/module.md",
        "docs/reference/trace.md",
        "docs/compatibility.md",
        "docs/reference/glossary.md",
        "docs/dependencies.md",
    ),
    "How it works": (
        "docs/architecture.md",
        "docs/explanation/walkthroughs.md",
        "docs/policies.md",
        "docs/explanation/plans-and-shapes.md",
        "docs/explanation/shared-budget.md",
        "docs/reference/timing.md",
        "docs/explanation/substrates.md",
        "docs/explanation/paging.md",
        "docs/explanation/births.md",
        "docs/explanation/huge-pages.md",
        "docs/explanation/energy.md",
        "docs/explanation/recomputation.md",
        "docs/explanation/backends.md",
        "docs/explanation/robustness.md",
        "docs/security.md",
    ),
    "Evidence": (
        "docs/benchmarks.md",
        "docs/explanation/demo-clock.md",
        "docs/explanation/test-machines.md",
        "docs/explanation/fuzzing.md",
    ),
    "Project": ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/adr/README.md"),
}
"""The site's navigation: the pages below each caption, in the order in which they are shown."""

RECORDS = ROOT / "docs/adr/README.md"
"""The list of the decision records. The records are below it in the navigation."""

LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
"""Matches a link or picture whose target is a file of the tree; the group of the expression is the
file's path."""


def pages() -> list[Path]:
    """Every Markdown page in the repository's root and below docs/."""
    return [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]


def contents(names: Iterable[str], *options: str) -> str:
    """A part of the navigation, as a toctree in Markdown. names: paths relative to the page
    that contains the toctree."""
    return "\n".join(["", "```{toctree}", ":hidden:", *options, "", *names, "```", ""])


def staged(page: Path) -> str:
    """The text of a page in the site. Links to the README lead to the front page."""
    text = page.read_text()
    if page == ROOT / "README.md":
        parts = [contents(names, f":caption: {title}") for title, names in NAVIGATION.items()]
        return "".join([text, *parts])
    if page == RECORDS:
        return text + contents(sorted(path.name for path in page.parent.glob("[0-9]*.md")))

    def link(match: re.Match[str]) -> str:
        to_readme = (page.parent / match[1]).resolve() == ROOT / "README.md"
        return match[0].replace("README.md", "index.md") if to_readme else match[0]

    return LINK.sub(link, text)


def stage(folder: Path) -> None:
    """Write the site's sources into an empty folder."""
    for page in pages():
        name = page.relative_to(ROOT).as_posix()
        copy = folder / ("index.md" if name == "README.md" else name)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(staged(page))
        for path in LINK.findall(page.read_text()):
            linked = (page.parent / path).resolve()
            if linked.is_file() and linked.suffix != ".md":
                copy = folder / linked.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(linked, copy)


def build(output: Path, builder: str = "html") -> int:
    """Build the site with one of Sphinx's builders; return Sphinx's exit status: 0, or 1 after a
    warning or error, which Sphinx prints."""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        stage(source)
        options = ["-q", "-W", "--keep-going", "-b", builder, "-c", str(ROOT / "docs")]
        command = [sys.executable, "-m", "sphinx", *options, "-d", f"{name}/.doctrees"]
        return subprocess.run([*command, str(source), str(output)], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))
