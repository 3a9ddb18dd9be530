# SPDX-License-Identifier: Apache-2.0
"""python -m tests.fuzz search|replay daemon|paged|shim ARGUMENTS

search: fuzz with atheris; the arguments are libFuzzer's.
replay: run a target on the named files, without a fuzzer.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import sentineld

TARGETS = ("daemon", "paged", "shim")

RSS_LIMIT_MIB = 8192
NOT_INSTRUMENTED = ("migrate", "plan", "planner", "policies", "profile", "simulate")
"""Packages that are not instrumented, because they compare large arrays: in instrumented code,
atheris 3.0 never frees the result of such a comparison. The data that the fuzzer sends is parsed in
other packages, above all in model and observe."""


def _target(name: str) -> Callable[[bytes], None]:
    target: Callable[[bytes], None] = importlib.import_module(f"tests.fuzz.{name}").Target()
    return target


def _modules(package: str) -> list[str]:
    """The names of the modules in a package of sentineld."""
    files = (Path(sentineld.__path__[0]) / package).rglob("*.py")
    root = Path(sentineld.__path__[0]).parent
    return [".".join(file.relative_to(root).with_suffix("").parts) for file in files]


def search(name: str, arguments: list[str]) -> None:
    """Fuzz until libFuzzer ends the process."""
    import atheris

    excluded = [module for package in NOT_INSTRUMENTED for module in _modules(package)]
    with atheris.instrument_imports(include=["sentineld"], exclude=excluded):
        target = _target(name)
    limit = f"-rss_limit_mb={RSS_LIMIT_MIB}"
    atheris.Setup([sys.argv[0], limit, *arguments], target)
    atheris.Fuzz()


def replay(name: str, paths: list[str]) -> None:
    """Run the target on each file."""
    target = _target(name)
    for path in paths:
        print(path, flush=True)  # after a failure, the last path names the failing input
        target(Path(path).read_bytes())


def main() -> int:
    """Parse the arguments and run the mode."""
    modes = {"search": search, "replay": replay}
    if len(sys.argv) < 3 or sys.argv[1] not in modes or sys.argv[2] not in TARGETS:
        print(__doc__, file=sys.stderr)
        return 2
    modes[sys.argv[1]](sys.argv[2], sys.argv[3:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
