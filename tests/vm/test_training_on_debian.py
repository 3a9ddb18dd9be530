# SPDX-License-Identifier: Apache-2.0
"""All tests of tests/integration/shim/test_training.py, with Debian 13's torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.shim.daemon_side import Daemon
from tests.integration.shim.test_training import *  # noqa: F403
from tests.integration.shim.test_training import check_losses, start
from tests.unit.links import received_writes

from .tree_place import place

__all__ = ["place"]

pytestmark = pytest.mark.long


def test_writes_are_tracked_by_descriptors_of_the_process(daemon: Daemon, tmp_path: Path) -> None:
    """Overrides the imported test of this name. Here the training runs in a chroot that has its own
    mount of /proc. So the descriptors that the training sends do not have the paths that the daemon
    expects, and the daemon refuses the descriptors."""
    training = start(daemon, tmp_path, "cnn")
    daemon.send({"type": "watch_writes"})
    way = daemon.receive("writes")["way"]
    fds = [daemon.take_descriptor(), daemon.take_descriptor()]
    writes = received_writes(training.process.pid, way, fds)
    assert (writes.way, writes.refusal) == ("", "the descriptors that it sent are not its own")
    daemon.wait_steps(6)
    check_losses(training)
