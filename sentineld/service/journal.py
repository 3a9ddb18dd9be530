# SPDX-License-Identifier: Apache-2.0
"""Writes log lines with fields to the systemd journal, in its native protocol.

https://systemd.io/JOURNAL_NATIVE_PROTOCOL/ describes the protocol: each entry is one datagram.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping

from sentineld.base.log_events import LOGGED_FIELDS

SOCKET = "/run/systemd/journal/socket"
IDENTIFIER = "sentineld"
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.NOTSET, 7))
"""For each level, the priority of syslog(3)."""


def stderr_is_journal() -> bool:
    """Whether stderr is connected to the journal. Compares the device and inode that JOURNAL_STREAM
    names with those of stderr, because a child process inherits the variable even if its stderr is
    not connected to the journal."""
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


class JournalHandler(logging.Handler):
    """Sends each log line as a datagram with these fields:

    - MESSAGE, PRIORITY, SYSLOG_IDENTIFIER, CODE_FILE, CODE_LINE, CODE_FUNC, LOGGER;
    - MESSAGE_ID, if the logging statement names a LogEvent;
    - SENTINELD_SESSION, SENTINELD_PID, SENTINELD_UID, SENTINELD_POLICY and SENTINELD_FAST, as far
      as they are known;
    - OBJECT_PID, the process that the line is about. journald adds this process's unit, so that
      `journalctl -u UNIT` also shows the daemon's lines about the unit's trainings.

    If the journal does not take a datagram, the line is written to stderr.
    """

    def __init__(self, address: str = SOCKET) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(message)s"))
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._stderr = logging.StreamHandler()

    def emit(self, record: logging.LogRecord) -> None:
        """Send the line. Blocks while journald's queue is full, as a write to stderr does."""
        try:
            # The socket is not connected, so that lines also reach a journald that was restarted.
            self._socket.sendto(encoded(self._fields(record)), self._address)
        except OSError:
            # There is no journald at the moment, or the line is too long for a datagram.
            self._stderr.emit(record)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        super().close()

    def _fields(self, record: logging.LogRecord) -> dict[str, object]:
        fields: dict[str, object] = {
            "MESSAGE": self.format(record),
            "PRIORITY": next(value for least, value in _PRIORITIES if record.levelno >= least),
            "SYSLOG_IDENTIFIER": IDENTIFIER,
            "CODE_FILE": record.pathname,
            "CODE_LINE": record.lineno,
            "CODE_FUNC": record.funcName,
            "LOGGER": record.name,
        }
        event = getattr(record, "event", None)
        if event is not None:
            fields["MESSAGE_ID"] = event
        known = {**LOGGED_FIELDS.get()(), **getattr(record, "fields", {})}
        for name, value in known.items():
            fields[f"SENTINELD_{name.upper()}"] = value
        if "pid" in known:
            fields["OBJECT_PID"] = known["pid"]
        return fields


def encoded(fields: Mapping[str, object]) -> bytes:
    """The datagram of an entry. Fields whose value is "" are left out."""
    datagram = bytearray()
    for name, value in fields.items():
        data = str(value).encode(errors="backslashreplace")
        if b"\n" in data:
            # The length precedes such a value, so that journald does not take the text after a
            # newline for another field.
            datagram += b"%s\n%s%s\n" % (name.encode(), len(data).to_bytes(8, "little"), data)
        elif data:
            datagram += b"%s=%s\n" % (name.encode(), data)
    return bytes(datagram)
