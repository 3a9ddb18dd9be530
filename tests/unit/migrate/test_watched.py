# SPDX-License-Identifier: Apache-2.0
"""Pages are disarmed during moves and queries; if these are all watched pages, that is a gap."""

from __future__ import annotations

import pytest

from sentineld.migrate.watched import Watched


class Backend:
    """Notes what is armed and disarmed."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def disarm(self, start: int, length_bytes: int) -> None:
        self.calls.append(("disarm", start))

    def arm(self, start: int, length_bytes: int) -> None:
        self.calls.append(("arm", start))


def query(watched: Watched) -> None:
    """Query all pages of a process that is gone."""
    with watched.disarmed(lambda: [(3, 4), (5, 0), (4, 4)], gap=True):
        assert watched.gaps == 1
        raise ProcessLookupError


def test_only_a_gap_is_counted_at_its_beginning_and_end() -> None:
    watched, backend = Watched(), Backend()
    with watched.disarmed(lambda: [(1, 4)], gap=True):
        assert not watched.gaps  # no pages are watched
    watched.begin(backend, lambda: None)
    with watched.disarmed(lambda: [(2, 4)]):
        assert backend.calls == [("disarm", 2)]
    assert watched.gaps == 0
    with pytest.raises(ProcessLookupError):
        query(watched)
    assert watched.gaps == 2
    assert backend.calls[2:] == [("disarm", 3), ("disarm", 4), ("arm", 3), ("arm", 4)]
    assert watched.end(lambda: "result") == "result"
    assert not watched.watched
