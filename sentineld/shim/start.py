# SPDX-License-Identifier: Apache-2.0
"""From asked for to at work: in front of torch as it is imported, hooked once it is there."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from sentineld.shim.client import Client
from sentineld.shim.native import Native, ShimUnavailableError, library_path
from sentineld.shim.runtime import Shim, say
from sentineld.shim.selftest import require_interposed
from sentineld.shim.torch_import import NAME, Watch


class Start:
    """The shim's way into this process. Nothing here raises: torch works with us or without.

    socket_path: the daemon's socket, None: its default. managed: whether the process can be
    managed; None as long as torch has not been imported.
    """

    def __init__(self) -> None:
        self.socket_path: str | None = None
        self.managed: bool | None = None
        self._watch = Watch(self._before_torch, self._after_torch)
        self._armed = False
        self._native: Native | None = None

    def arm(self) -> None:
        """Wait for torch's import; it must be yet to come. Again and again is as good as once."""
        if self._armed:
            return
        self._armed = True
        if NAME in sys.modules:
            self._unmanaged("torch was imported before it")
        else:
            self._watch.begin()

    def disarm(self) -> None:
        """Leave a torch alone that is imported from now on."""
        self._watch.end()
        self._armed = False

    def now(self) -> bool:
        """Import torch now, for which arm() has waited; whether the process can be managed."""
        try:
            importlib.import_module(NAME)
        except ImportError as error:
            self._unmanaged(f"torch does not import: {error}")
        return bool(self.managed)

    def _before_torch(self) -> None:
        """Load the C object, to which torch's libraries will bind."""
        try:
            native = Native(library_path())
            native.start()
        except ShimUnavailableError as reason:
            self._unmanaged(str(reason))
        else:
            self._native = native

    def _after_torch(self, torch: ModuleType) -> None:
        """Check that torch allocates through the C object, and hook it."""
        native = self._native
        if native is None:
            return
        client = Client(self.socket_path)
        try:
            require_interposed(native, torch)
            native.enable(True)
            hook(native, client, str(torch.__version__))
        except ShimUnavailableError as reason:
            self._unmanaged(str(reason))
        except Exception as error:
            # A torch whose inner parts moved: its tensors must not depend on hooks that fail.
            native.enable(False)
            client.close()
            self._unmanaged(f"this torch is unknown to it: {type(error).__name__}: {error}")
        else:
            self.managed = True

    def _unmanaged(self, reason: str) -> None:
        self.managed = False
        say(f"running unmanaged: {reason}")


def hook(native: Native, client: Client, torch_version: str) -> Shim:
    """Put the shim to work in a torch that is imported; the C object serves its tensors."""
    # All of them import torch.
    from sentineld.shim.hooks import Hooks, Layers
    from sentineld.shim.names import Names
    from sentineld.shim.stepless import Stepless

    tensors = Names()
    layers = Layers(tensors)
    shim = Shim(native, client, layers, tensors, torch_version)
    Hooks(native, layers, tensors, Stepless(shim.note), shim.step_ended).install()
    return shim
