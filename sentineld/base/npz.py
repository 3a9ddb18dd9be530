# SPDX-License-Identifier: Apache-2.0
"""Errors that numpy and zipfile raise when they read a damaged .npz file."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib

DAMAGED_ERRORS = (
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,  # a header with a huge shape
    NotImplementedError,  # unknown compression
    OSError,
    OverflowError,
    RecursionError,
    RuntimeError,  # an encrypted archive
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    tokenize.TokenError,  # numpy parses the headers of arrays as Python code
    zipfile.BadZipFile,
    zlib.error,
)
