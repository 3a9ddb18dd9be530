# SPDX-License-Identifier: Apache-2.0
"""Entries of the systemd journal, received by a socket that stands in for journald's."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentineld.base.log_events import LogEvent, about
from sentineld.base.log_limit import LogLimit
from sentineld.control.server import Caller
from sentineld.service.journal import JournalHandler, encoded, stderr_is_journal
from tests.unit.descriptors import open_descriptors
from tests.unit.service.shim_daemon import Daemon, greet, hang_up
from tests.unit.waiting import PATIENCE_S

DATAGRAM_BYTES_MAX = 1 << 20


def decoded(datagram: bytes) -> dict[str, str]:
    """The fields of an entry, read as the documentation of the protocol says."""
    fields = {}
    while datagram:
        line, _, datagram = datagram.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(datagram[:8], "little")
            value, end, datagram = datagram[8 : 8 + size], datagram[8 + size], datagram[9 + size :]
            assert end == ord("\n")
        assert name.decode() not in fields
        fields[name.decode()] = value.decode()
    return fields


class Journal:
    """A socket that stands in for journald's, and a logger whose handler sends to it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal"
        self._socket = self._listen()
        self.handler = JournalHandler(str(self.path))
        self.handler.addFilter(LogLimit())
        self.log = logging.Logger("test", logging.INFO)
        self.log.addHandler(self.handler)

    def _listen(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listening.bind(str(self.path))
        listening.setblocking(False)
        return listening

    def entry(self) -> dict[str, str]:
        """The oldest entry that has not been read yet."""
        return decoded(self._socket.recv(DATAGRAM_BYTES_MAX))

    def entries(self) -> list[dict[str, str]]:
        """All entries that have not been read yet."""
        found = []
        try:
            while True:
                found.append(self.entry())
        except BlockingIOError:
            return found

    def until(self, message: str) -> list[dict[str, str]]:
        """Wait for the entry with this message; returns all unread entries up to this one."""
        self._socket.setblocking(True)
        found = [self.entry()]
        while found[-1]["MESSAGE"] != message:
            found.append(self.entry())
        return found

    def restart(self) -> None:
        self.stop()
        self._socket = self._listen()

    def stop(self) -> None:
        self._socket.close()
        self.path.unlink()

    def close(self) -> None:
        self._socket.close()
        self.handler.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path)
    yield made
    made.close()


def test_a_line_is_an_entry_with_its_place_in_the_code(journal: Journal) -> None:
    journal.log.info("%d sessions", 3)
    entry = journal.entry()
    assert entry["CODE_FILE"] == __file__
    assert int(entry.pop("CODE_LINE")) > 0
    del entry["CODE_FILE"]
    assert entry == {
        "MESSAGE": "3 sessions",
        "PRIORITY": "6",
        "SYSLOG_IDENTIFIER": "sentineld",
        "CODE_FUNC": "test_a_line_is_an_entry_with_its_place_in_the_code",
        "LOGGER": "test",
    }


def test_kind_and_facts_are_fields(journal: Journal) -> None:
    extra = about(LogEvent.ATTACHED, session="7-1", pid=7, uid=1000, policy="auto", fast="20%")
    journal.log.warning("attached", extra=extra)
    entry = journal.entry()
    assert entry["MESSAGE_ID"] == LogEvent.ATTACHED.value
    assert (entry["PRIORITY"], entry["OBJECT_PID"]) == ("4", "7")
    facts = {name: value for name, value in entry.items() if name.startswith("SENTINELD_")}
    assert facts == {
        "SENTINELD_SESSION": "7-1",
        "SENTINELD_PID": "7",
        "SENTINELD_UID": "1000",
        "SENTINELD_POLICY": "auto",
        "SENTINELD_FAST": "20%",
    }


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.CRITICAL, "3"), (logging.ERROR, "3"), (logging.WARNING, "4"), (logging.INFO, "6")],
)
def test_levels_are_syslogs_priorities(journal: Journal, level: int, priority: str) -> None:
    journal.log.log(level, "hello")
    assert journal.entry()["PRIORITY"] == priority


@pytest.mark.parametrize(
    "message", ["two\nlines", "two\nPRIORITY=0\nlines\n", "\n", "é \udcff", "a=b"]
)
def test_a_message_cannot_add_fields(journal: Journal, message: str) -> None:
    journal.log.info("%s", message)
    entry = journal.entry()
    assert entry["MESSAGE"] == message.encode(errors="backslashreplace").decode()
    assert entry["PRIORITY"] == "6"


def test_empty_fields_are_left_out() -> None:
    assert encoded({"A": "", "B": 0}) == b"B=0\n"


def test_an_errors_stack_is_part_of_the_message(journal: Journal) -> None:
    try:
        raise ValueError("no such thing")
    except ValueError:
        journal.log.exception("internal error")
    message = journal.entry()["MESSAGE"]
    assert message.startswith("internal error\nTraceback")
    assert message.endswith("ValueError: no such thing")


def test_lines_are_limited(journal: Journal) -> None:
    entries = []
    for number in range(100):
        journal.log.info("line %d", number, extra=about(LogEvent.STARTED, uid=1))
        entries += journal.entries()  # the socket's queue has room for a few datagrams only
    assert 0 < len(entries) < 100
    assert "further lines like this" in entries[-1]["MESSAGE"]


def test_a_restarted_journald_is_found(journal: Journal) -> None:
    journal.log.info("one")
    journal.restart()
    journal.log.info("two")
    assert [entry["MESSAGE"] for entry in journal.entries()] == ["two"]


def test_without_journald_lines_go_to_stderr(
    journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.stop()
    journal.handler = JournalHandler(str(journal.path))  # takes pytest's stderr
    journal.log.handlers = [journal.handler]
    journal.log.info("one")
    assert capsys.readouterr().err == "one\n"


def test_a_line_that_is_too_long_for_a_datagram_goes_to_stderr(
    journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.handler = JournalHandler(str(journal.path))
    journal.log.handlers = [journal.handler]
    journal.log.info("x" * (4 << 20))
    assert len(capsys.readouterr().err) == (4 << 20) + 1
    assert journal.entries() == []


def test_a_closed_handler_keeps_no_descriptor(tmp_path: Path) -> None:
    before = open_descriptors()
    JournalHandler(str(tmp_path / "none")).close()
    assert open_descriptors() == before


def test_stderr_is_compared_with_the_journals_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "stderr").open("w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.delenv("JOURNAL_STREAM", raising=False)
        assert not stderr_is_journal()
        found = os.fstat(stderr.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        assert stderr_is_journal()
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino + 1}")
        assert not stderr_is_journal()
    assert not stderr_is_journal()  # it is closed


def test_a_sessions_lines_have_its_facts(journal: Journal, tmp_path: Path) -> None:
    root = logging.getLogger()
    before = root.level
    entries: list[dict[str, str]] = []
    reader = threading.Thread(target=lambda: entries.extend(journal.until("the end")), daemon=True)
    reader.start()
    root.addHandler(journal.handler)
    root.setLevel(logging.INFO)
    try:
        daemon = Daemon(tmp_path)
        shim = greet(daemon)
        (session,) = daemon.sessions.all()
        us, me = {"pid": os.getpid()}, Caller(os.getuid(), threading.Event())
        daemon.sessions.attach(me, us)
        daemon.sessions.detach(me, us)
        hang_up(daemon, shim)
        session.join()
        daemon.close()
    finally:
        root.removeHandler(journal.handler)
        root.setLevel(before)
    journal.log.info("the end")
    reader.join(PATIENCE_S)
    by_kind = {entry.get("MESSAGE_ID"): entry for entry in entries}
    kinds = (LogEvent.REGISTERED, LogEvent.ATTACHED, LogEvent.DETACHED, LogEvent.SESSION_ENDED)
    for kind in kinds:
        entry = by_kind[kind.value]
        assert entry["SENTINELD_SESSION"] == session.name
        assert entry["SENTINELD_PID"] == entry["OBJECT_PID"] == str(os.getpid())
        assert entry["SENTINELD_UID"] == str(os.getuid())
    attached = by_kind[LogEvent.ATTACHED.value]
    assert (attached["SENTINELD_POLICY"], attached["SENTINELD_FAST"]) == ("auto", "20%")
    assert "SENTINELD_POLICY" not in by_kind[LogEvent.REGISTERED.value]
