# SPDX-License-Identifier: Apache-2.0
"""Errors shown to users: a stable code, a one-line message and a hint.

Every error that is sent over the control socket is a SentinelError. The code is part of the control
protocol. The parsing of a command line raises exceptions of click instead (see entry.py).
"""

from __future__ import annotations

EXIT_STATUS = {
    "failed": 1,
    "usage": 2,
    "daemon-unreachable": 3,
    "not-permitted": 4,
    "no-such-process": 5,
    "not-a-shim-process": 6,
    "no-second-tier": 7,
    "module-not-loaded": 8,
    "no-kernel-headers": 9,
    "bcc-missing": 10,
    "budget-too-large": 11,
    "wrong-state": 12,
    "unknown-policy": 13,
    "protocol-mismatch": 14,
    "busy": 15,
    "bad-config": 78,
}
"""Exit status of `sentinelctl` and `sentineld` for each error code."""


class SentinelError(Exception):
    """An error with a stable code, a one-line message and a hint on how to fix it."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        if code not in EXIT_STATUS:
            raise ValueError(f"unknown error code {code!r}")
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[type[SentinelError], tuple[str, ...]]:
        """Pickle the arguments of the constructor, because planning processes return pickled
        errors. A subclass with another constructor must override this."""
        return type(self), (self.code, self.message, self.hint)

    def fresh(self) -> SentinelError:
        """A new error with the same content. A stored error that is raised repeatedly must be
        raised as a new object each time: each raise of the same object adds frames to its
        traceback, and the frames keep their variables alive."""
        kind, arguments = self.__reduce__()
        return kind(*arguments)

    @property
    def exit_status(self) -> int:
        """The exit status of a command that ends with this error."""
        return EXIT_STATUS[self.code]

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


def hung_up() -> SentinelError:
    """The error that ends a verb (a request to the daemon) whose caller has hung up."""
    return SentinelError("failed", "the caller has hung up")
