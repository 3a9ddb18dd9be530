# SPDX-License-Identifier: Apache-2.0
"""Start-up: load the shim's C library before torch is imported, and install the hooks
afterwards."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from sentineld.shim.client import Client
from sentineld.shim.native import Native, ShimUnavailableError, library_path
from sentineld.shim.runtime import Shim
from sentineld.shim.say import say
from sentineld.shim.selftest import require_interposed
from sentineld.shim.torch_import import NAME, TorchImportHook


class Start:
    """Starts the shim in this process.

    If the shim cannot work, the reason goes to stderr and the program runs without the shim.
    """

    def __init__(self) -> None:
        self.socket_path: str | None = None
        """Path of the daemon's socket; None: the default."""
        self.managed: bool | None = None
        """Whether the process can be managed; None before torch's import."""
        self._import_hook = TorchImportHook(self._before_torch, self._after_torch)
        self._armed = False
        self._native: Native | None = None
        self._shim: Shim | None = None

    def arm(self) -> None:
        """Make the import of torch load the shim; repeated calls have no effect."""
        if self._armed:
            return
        self._armed = True
        if NAME in sys.modules:
            self._unmanaged("torch was imported before sentineld.shim")
        else:
            self._import_hook.install()

    def disarm(self) -> None:
        """Cancel arm(): a later import of torch does not load the shim."""
        self._import_hook.remove()
        self._armed = False

    def now(self) -> bool:
        """Import torch now; returns whether the process can be managed. Call arm() first."""
        try:
            importlib.import_module(NAME)
        except (ImportError, OSError) as error:  # OSError: ctypes cannot load a library
            self._unmanaged(f"importing torch failed: {error}")
        return bool(self.managed)

    def serving(self) -> Native | None:
        """The shim's C library; None if this process cannot be managed."""
        return self._native if self._shim is not None and self._shim.alive else None

    def _before_torch(self) -> None:
        """Load the shim's C library, so that torch's libraries bind to its symbols."""
        try:
            native = Native(library_path())
            native.start()
        except ShimUnavailableError as reason:
            self._unmanaged(str(reason))
        else:
            self._native = native

    def _after_torch(self, torch: ModuleType) -> None:
        """Check that torch allocates through the shim's C library, then install the hooks."""
        native = self._native
        if native is None:
            return
        client = Client(self.socket_path)
        try:
            require_numpy()
            require_interposed(native, torch)
            native.enable(True)
            self._shim = hook(native, client, str(torch.__version__))
        except ShimUnavailableError as reason:
            self._unmanaged(str(reason))
        except Exception as error:
            # The hooks do not fit torch's internals, so let libc10 serve all allocations.
            native.enable(False)
            client.close()
            self._unmanaged(f"the hooks do not fit this torch: {type(error).__name__}: {error}")
        else:
            self.managed = True

    def _unmanaged(self, reason: str) -> None:
        self.managed = False
        say(f"running unmanaged: {reason}")


def require_numpy() -> None:
    """Raise ShimUnavailableError if numpy, which the modules with the hooks need, is missing."""
    try:
        importlib.import_module("numpy")
    except ImportError as error:
        reason = (str(error).strip().splitlines() or ["no message"])[0]
        raise ShimUnavailableError(
            f"numpy cannot be imported: {reason} (pip install numpy; Debian: python3-numpy)"
        ) from error


def hook(native: Native, client: Client, torch_version: str) -> Shim:
    """Connect to the daemon and install the hooks in torch, which must be imported already and must
    allocate through the shim's C library."""
    # Imported here, because these modules import torch.
    from sentineld.shim.hooks import Hooks, Layers
    from sentineld.shim.names import Names
    from sentineld.shim.script_profiler import ScriptProfiler
    from sentineld.shim.stepless import MissingSteps

    tensors = Names()
    layers = Layers(tensors)
    script_profiler = ScriptProfiler()
    script_profiler.watch()
    shim = Shim(native, client, layers, tensors, script_profiler, torch_version)
    Hooks(native, layers, tensors, MissingSteps(shim.note), shim.step_ended).install()
    return shim
