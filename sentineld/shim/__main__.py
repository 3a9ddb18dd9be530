# SPDX-License-Identifier: Apache-2.0
"""`python -m sentineld.shim [--socket PATH] [-m MODULE | -c CODE | SCRIPT] ARGS...`

Run a training script under the shim; apart from that, run it as Python itself would.
"""

from __future__ import annotations

import os
import runpy
import sys
import types

from sentineld.shim import arm

USAGE = "usage: python -m sentineld.shim [--socket PATH] (SCRIPT | -m MODULE | -c CODE) [ARGS...]"


def _usage_error(problem: str) -> int:
    print(f"error: {problem} ({USAGE})", file=sys.stderr)
    return 2


def _run_as_main(source: bytes, name: str, file: str | None) -> None:
    """Execute source as module __main__. The module stays alive until the process exits."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    if file is not None:
        module.__file__ = file
    sys.modules["__main__"] = module
    # Without dont_inherit, the __future__ imports of this file would apply to source, too.
    exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)


def main() -> int:
    """Parse --socket, call sentineld.shim.arm() and run the program."""
    arguments = sys.argv[1:]
    socket_path = None
    if arguments and arguments[0] == "--socket":
        if len(arguments) < 2:
            return _usage_error("--socket needs a path")
        socket_path, arguments = arguments[1], arguments[2:]
    if not arguments or (arguments[0] in ("-m", "-c") and len(arguments) < 2):
        return _usage_error("no script, -m MODULE or -c CODE given")
    if arguments[0] not in ("-m", "-c") and not os.path.isfile(arguments[0]):
        return _usage_error(f"no such script: {arguments[0]}")
    arm(socket_path)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path[0] = ""
        _run_as_main(arguments[1].encode(), "<string>", None)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))
        with open(arguments[0], "rb") as file:
            source = file.read()
        _run_as_main(source, arguments[0], arguments[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
