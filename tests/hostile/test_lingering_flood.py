# SPDX-License-Identifier: Apache-2.0
"""Attack: a flood of connections, each with an unread descriptor whose close() blocks."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from tests.hostile.attack import attack_alone
from tests.hostile.attacker import OTHER_USER, Say
from tests.hostile.shim_client import ShimClient, registered
from tests.hostile.test_received_descriptors import lingering

FLOOD_S = 5.0


def flood(say: Say, path: str, duration_s: float) -> None:
    """Repeatedly connect, send a byte with a descriptor from lingering(), and hang up."""
    end_s = time.monotonic() + duration_s
    count = 0
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError):
            client = ShimClient(Path(path))
            stuck = lingering()
            client.raw(b"\x10", [stuck])
            os.close(stuck)
            client.close()
            count += 1
    say(count)


def register(say: Say, path: str) -> None:
    client, _ = registered(Path(path))
    say("registered")
    client.closed(600)


@pytest.mark.parametrize("place", ["shims", "control"])
def test_a_flood_of_connections_whose_descriptors_linger(place: str) -> None:
    with attack_alone(f"connections to {place} with lingering descriptors") as attack:
        path = str(getattr(attack.daemon, place))
        attackers = [attack.start(flood, path, FLOOD_S) for _ in range(2)]
        attack.hold(FLOOD_S / 2)
        later = attack.start(register, str(attack.daemon.shims), user=OTHER_USER)
        assert later.heard() == "registered"
        print([attacker.heard() for attacker in attackers], "connections")
        attack.check()
