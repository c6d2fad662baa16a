"""Conversion of headers for the Kafka client, and errors of invalid ones."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.clients.errors import ProducerError
from headrace.clients.record_fields import as_header_list
from support.golden import case_lines, golden


def test_header_values_become_bytes() -> None:
    assert as_header_list("t", [("a", "ü"), ("ü", b"\xff")]) == [("a", "ü".encode()), ("ü", b"\xff")]


def test_invalid_headers_are_an_error() -> None:
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
