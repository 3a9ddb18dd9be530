# SPDX-License-Identifier: Apache-2.0
"""Runs at Python's start and installs the shim's import hook.

`sentinelctl run` puts this folder first on PYTHONPATH. This module then runs the sitecustomize that
it shadows, if there is one.
"""

import importlib.util
import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]

try:
    import sentineld.shim  # noqa: F401
except ImportError as error:
    # Not by print(): if stderr does not take the line, the line must not stay in a buffer.
    with suppress(OSError):
        os.write(2, f"sentineld.shim: running unmanaged: {error}\n".encode(errors="replace"))

spec = PathFinder.find_spec(__name__)
if spec is not None and spec.loader is not None:
    sys.modules[__name__] = following = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(following)
