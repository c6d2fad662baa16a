"""What applications give as headers, and what is said of what a record cannot hold."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.clients.errors import ProducerError
from headrace.clients.record_forms import as_header_list
from support.golden import case_lines, golden


def test_names_are_text_and_contents_bytes() -> None:
    assert as_header_list("t", [("a", "ü"), ("ü", b"\xff")]) == [("a", "ü".encode()), ("ü", b"\xff")]


def test_headers_that_a_record_cannot_hold_are_refused() -> None:
    invalid: tuple[Any, ...] = (
        5,
        {"a": "b"},
        [("a", None)],
        [("\ud800", "a")],
        [("a", "\ud800")],
        [("a\0b", "a")],
    )
    errors = []
    for headers in invalid:
        with pytest.raises(ProducerError) as refused:
            as_header_list("t", headers)
        assert refused.value.topic == "t"
        errors.append((ascii(headers), ascii(str(refused.value))))
    lines = case_lines(errors)
    assert lines == golden("clients/refused_headers.txt", lines)
