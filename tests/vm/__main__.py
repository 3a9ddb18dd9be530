# SPDX-License-Identifier: Apache-2.0
"""Command line of the two-tier machine: `python3 -m tests.vm VERB`."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys

from .guest import TREE, Guest
from .host import MachineError, install_tools, require_ready, say
from .image import ensure_image, find_image
from .qemu import VARIANTS
from .recipe import MAIN, RECIPES


def main(argv: list[str]) -> int:
    """Run one verb and return the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.verb(arguments)
        return status
    except MachineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m tests.vm", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    tools = verbs.add_parser("tools", help="install the required Debian packages")
    tools.set_defaults(verb=_tools)
    build = verbs.add_parser("build", help="build the images that are not in the cache")
    build.set_defaults(verb=_build)
    build.add_argument(
        "--main", action="store_true", help="build only the image that most tests use"
    )
    for name, verb, text in (
        ("shell", _shell, "open a root shell in a new guest; the repository is in " + TREE),
        ("run", _run, "run one command in a new guest; the repository is in " + TREE),
        ("boot-check", _boot_check, "boot, print the memory tiers, check the kernel log"),
    ):
        sub = verbs.add_parser(name, help=text)
        sub.set_defaults(verb=verb)
        sub.add_argument("--suite", choices=list(RECIPES), default=MAIN.suite, help="Debian suite")
        sub.add_argument("--variant", choices=VARIANTS, default="two-tier")
        sub.add_argument("--fast-mib", type=int, default=2048, help="size of node 0 in MiB")
        sub.add_argument("--slow-mib", type=int, default=1024, help="size of node 1 in MiB")
        if verb is not _boot_check:
            sub.add_argument(
                "--artifacts", action="store_true", help="also build and copy the C parts"
            )
        if name == "run":
            sub.add_argument("--timeout", type=float, default=600.0, help="limit for CMD, seconds")
            sub.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD")
    return parser


def _guest(arguments: argparse.Namespace) -> Guest:
    return Guest(
        arguments.variant,
        fast_mib=arguments.fast_mib,
        slow_mib=arguments.slow_mib,
        image=ensure_image(RECIPES[arguments.suite]),
    )


def _put_all(guest: Guest, arguments: argparse.Namespace) -> None:
    guest.put_tree()
    if arguments.artifacts:
        guest.put_artifacts()


def _tools(arguments: argparse.Namespace) -> int:
    install_tools()
    return 0


def _build(arguments: argparse.Namespace) -> int:
    require_ready()
    for recipe in (MAIN,) if arguments.main else RECIPES.values():
        cached = find_image(recipe)
        image = ensure_image(recipe)
        if cached:
            say(f"image already in {image.directory}")
    return 0


def _shell(arguments: argparse.Namespace) -> int:
    with _guest(arguments) as guest:
        _put_all(guest, arguments)
        command = f"cd {TREE} && exec bash -l"
        return subprocess.run(guest.connection.argv(command, "-t")).returncode


def _run(arguments: argparse.Namespace) -> int:
    words = arguments.command
    line = words[0] if len(words) == 1 else shlex.join(words)
    with _guest(arguments) as guest:
        _put_all(guest, arguments)
        result = guest.run(f"cd {TREE} && {line}", arguments.timeout, check=False)
        sys.stdout.write(result.stdout)
        sys.stderr.write(result.stderr)
        guest.check_kernel_log()
        return result.returncode


def _boot_check(arguments: argparse.Namespace) -> int:
    with _guest(arguments) as guest:
        tiers = "grep -H . /sys/devices/virtual/memory_tiering/memory_tier*/nodelist; numactl -H"
        print(guest.run(tiers).stdout, end="")
        guest.check_kernel_log()
        print("kernel log: no problems")
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
