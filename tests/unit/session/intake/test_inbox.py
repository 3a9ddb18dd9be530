# SPDX-License-Identifier: Apache-2.0
"""Messages of a shim are validated, and their sizes are limited."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.records import OP_ACCESS_DTYPE, TensorName
from sentineld.observe.shim_link import OP_ACCESSES_MAX
from sentineld.session.intake import inbox as inbox_module
from sentineld.session.intake.inbox import (
    LAYER_CHARACTERS_MAX,
    LOGGED_MAX,
    NAME_CHARACTERS,
    PLACED_MAX,
    THREADS_MAX,
    Inbox,
)
from sentineld.session.intake.sampling import Observing
from tests.unit.links import Linked


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    linked = Linked()
    yield Inbox(linked.link, Observing(linked.link, 1024))
    linked.close()


def test_threads_are_those_of_the_hello_until_a_message_changes_them(inbox: Inbox) -> None:
    assert inbox.threads == 1
    assert inbox.take({"type": "threads", "threads": 4}) is None
    assert inbox.threads == 4


@pytest.mark.parametrize("threads", [0, -1, THREADS_MAX + 1, True, 2.0, "2", None, []])
def test_invalid_numbers_of_threads_are_zero(inbox: Inbox, threads: object) -> None:
    inbox.take({"type": "threads", "threads": threads})
    assert inbox.threads == 0


def test_names_of_layers_are_cut_short(inbox: Inbox) -> None:
    inbox.take({"type": "layers", "names": ["", "a" * 1000]})
    assert inbox.layers == ("", "a" * LAYER_CHARACTERS_MAX)


def take_names(names: list[object]) -> dict[int, TensorName]:
    """Send these names to an inbox, in a message of accesses; returns those that it keeps."""
    linked = Linked()
    inbox = Inbox(linked.link, Observing(linked.link, 1024))
    message = {"type": "accesses", "step": 7, "names": names}
    fd = os.memfd_create("accesses")
    linked.shim.send(message, [fd])
    os.close(fd)
    linked.receive()
    inbox.take(message)
    linked.close()
    return dict(inbox.names)


def test_names_of_persistent_tensors_are_kept() -> None:
    weight, gradient = [4096, "parameter", "a.weight"], [8192, "gradient", "a.weight"]
    assert take_names([weight, gradient]) == {4096: TensorName("parameter", "a.weight")}


def test_the_length_of_all_kept_names_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "TENSOR_NAMES_CHARACTERS_MAX", 10 * NAME_CHARACTERS + 70)
    rows: list[object] = [[at, "buffer", "a"] for at in range(100)]
    assert list(take_names(rows)) == list(range(10))
    gradients: list[object] = [[1000 + at, "gradient", "a"] for at in range(100)]
    assert list(take_names(gradients + rows)) == list(range(10))


def test_too_many_accesses_are_not_used(caplog: pytest.LogCaptureFixture) -> None:
    linked = Linked()
    inbox = Inbox(linked.link, Observing(linked.link, 1024))
    fd = os.memfd_create("accesses")
    os.truncate(fd, (OP_ACCESSES_MAX + 1) * OP_ACCESS_DTYPE.itemsize)
    message = {"type": "accesses", "step": 7, "names": []}
    linked.shim.send(message, [fd])
    os.close(fd)
    linked.receive()
    accesses = inbox.take(message)
    assert accesses is not None
    assert not len(accesses.rows)
    assert f"reports {OP_ACCESSES_MAX + 1} accesses of operators" in caplog.text
    assert f"more than {OP_ACCESSES_MAX}" in caplog.text
    linked.close()


def test_only_the_layout_that_was_sent_is_waited_for(inbox: Inbox) -> None:
    inbox.expect_layout(7)
    inbox.take({"type": "layout", "layout_id": 6, "ok": False, "error": "another"})
    assert not inbox.layout_live
    with pytest.raises(SentinelError, match="refused the layout: no room"):
        inbox.take({"type": "layout", "layout_id": 7, "ok": False, "error": "no room"})
    inbox.take({"type": "layout", "layout_id": 7, "ok": True})
    assert inbox.layout_live


def test_a_refused_layout_of_cuts_is_an_error_unless_it_is_a_former_one(inbox: Inbox) -> None:
    def answer(layout_id: int, ok: bool) -> None:
        inbox.take({"type": "layout", "layout_id": layout_id, "ok": ok, "error": "no right"})

    inbox.expect_cuts(6)
    inbox.expect_cuts(7)
    answer(6, False)
    with pytest.raises(SentinelError, match="refused the layout: no right"):
        answer(7, False)
    answer(7, True)
    assert not inbox.layout_live
    inbox.expect_layout(8)
    answer(7, True)
    assert not inbox.layout_live
    inbox.forget_layouts()
    for former in (6, 7, 8):
        answer(former, False)
        answer(former, True)
    assert not inbox.layout_live


def test_a_process_writes_a_limited_number_of_lines_to_the_log(
    inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(10 * LOGGED_MAX):
        inbox.take({"type": "note", "text": "hello"})
        inbox.take({"type": "accesses"})
    assert len(caplog.records) == LOGGED_MAX + 1
    assert "left out" in caplog.records[-1].getMessage()


def test_an_answer_without_a_layout_is_ignored(inbox: Inbox) -> None:
    inbox.take({"type": "layout", "layout_id": 0, "ok": False})
    assert not inbox.layout_live


def test_placements_are_those_of_the_last_message(inbox: Inbox) -> None:
    assert inbox.placed is None
    inbox.take({"type": "placed", "tensors": [[4096, 1], [8192, 2]]})
    assert inbox.placed == {4096: 1, 8192: 2}
    before = inbox.placed
    inbox.take({"type": "placed", "tensors": []})
    assert inbox.placed == {}
    assert inbox.placed is not before


@pytest.mark.parametrize(
    "rows", [None, 7, {}, [7], [[1]], [[1, 2, 3]], [[1, 0]], [[1, 3]], [["a", 1]], [[1, True]]]
)
def test_malformed_placements_are_skipped(inbox: Inbox, rows: object) -> None:
    inbox.take({"type": "placed", "tensors": rows})
    assert inbox.placed == {}


def test_the_number_of_placements_is_limited(inbox: Inbox) -> None:
    inbox.take({"type": "placed", "tensors": [[at, 1] for at in range(PLACED_MAX + 5)]})
    assert inbox.placed is not None
    assert len(inbox.placed) == PLACED_MAX
