# SPDX-License-Identifier: Apache-2.0
"""Makes text from untrusted processes printable, and limits the length of texts."""

from __future__ import annotations

import json


def json_end(text: str, bytes_max: int) -> str:
    """The text's longest suffix whose JSON string takes at most bytes_max bytes, not counting the
    quotes. One character takes up to 12 bytes in JSON."""
    if len(json.dumps(text)) - 2 <= bytes_max:
        return text
    left, length = bytes_max, 0
    for character in reversed(text):
        left -= len(json.dumps(character)) - 2
        if left < 0:
            break
        length += 1
    return text[len(text) - length :]


def printable(text: str) -> str:
    """The text with "?" for each character that is not printable. Such characters include line
    ends, control sequences of terminals, and surrogates, which stand for bytes that are not
    UTF-8."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def text_of(value: object, characters_max: int) -> str:
    """One printable line of at most characters_max characters for a value that a peer sent."""
    if isinstance(value, (list, dict)):
        return f"({type(value).__name__})"  # repr() of deep nesting raises RecursionError
    return printable(str(value)[:characters_max])
