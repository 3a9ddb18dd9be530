# SPDX-License-Identifier: Apache-2.0
"""The pages of error messages quote the messages of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from docs.generate import page_is_current
from docs.messages import Message, all_errors, all_texts, errors, messages_page
from sentineld.base.errors import EXIT_STATUS

ROOT = Path(__file__).parents[3]
EXPLAINED = (ROOT / "docs/troubleshooting.md").read_text()
SECTIONS = {
    title: re.findall(r"^### `([^\n]+)`$", text, re.MULTILINE)
    for title, text in re.findall(
        r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", EXPLAINED, re.DOTALL | re.MULTILINE
    )
}
"""The messages that the page of explanations quotes, by the title of the section."""


def test_the_page_of_all_messages_is_up_to_date() -> None:
    assert page_is_current("reference/messages.md", messages_page()), "run `make docs`"


@pytest.mark.parametrize("code", EXIT_STATUS)
def test_the_messages_of_an_error_code_are_those_of_errors_with_this_code(code: str) -> None:
    raised = {message.text for message in all_errors() if message.code == code}
    assert SECTIONS[code]
    assert set(SECTIONS[code]) <= raised


def test_every_explained_message_is_in_the_code() -> None:
    quoted = {message for messages in SECTIONS.values() for message in messages}
    assert quoted <= all_texts()


def found(source: str) -> set[Message]:
    return set(errors(ast.parse(source)))


def test_varying_parts_become_dots() -> None:
    call = 'SentinelError("failed", f"{a}{b} of {c!r}", f"give {d}")'
    assert found(call) == {Message("failed", "... of ...", "give ...")}


def test_texts_of_variables_and_alternatives_are_found() -> None:
    source = """
HINT = "try again"

def check(odd):
    if odd:
        what = "it is odd"
    else:
        what = f"it is {odd}"
    raise SentinelError("busy", what, HINT if odd else "wait")
"""
    hint = "try again; or: wait"
    assert found(source) == {
        Message("busy", "it is odd", hint),
        Message("busy", "it is ...", hint),
    }


def test_variables_of_other_functions_are_not_used() -> None:
    source = """
def one():
    what = "of one"

def other():
    raise SentinelError("busy", what)
"""
    assert found(source) == set()
