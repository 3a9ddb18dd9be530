# SPDX-License-Identifier: Apache-2.0
"""Makes text from untrusted processes printable and limits its length."""

from __future__ import annotations


def text_of(value: object, characters_max: int) -> str:
    """One printable line of at most characters_max characters for a value that a peer sent."""
    if isinstance(value, (list, dict)):
        return f"({type(value).__name__})"  # repr() of deep nesting raises RecursionError
    line = str(value)[:characters_max]
    return line if line.isprintable() else "".join(c if c.isprintable() else "?" for c in line)
