"""What applications give as headers, and what is said of what a record cannot hold."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.pipeline.clients.errors import ProducerError
from headrace.pipeline.clients.record_forms import as_header_list


def test_names_are_text_and_contents_bytes() -> None:
    assert as_header_list("t", [("a", "ü"), ("ü", b"\xff")]) == [("a", "ü".encode()), ("ü", b"\xff")]


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        (5, "expected headers as pairs of a name and text or bytes, found 5"),
        ({"a": "b"}, "expected headers as pairs of a name and text or bytes, found 'a'"),
        ([("a", None)], "expected headers as pairs"),
        ([("\ud800", "a")], "has no UTF-8 form"),
        ([("a", "\ud800")], "has no UTF-8 form"),
        ([("a\0b", "a")], "has a zero character, where it would be cut off"),
    ],
)
def test_what_no_record_can_hold_is_refused(headers: Any, said: str) -> None:
    with pytest.raises(ProducerError, match=f"^topic t: .*{said}") as refused:
        as_header_list("t", headers)
    assert refused.value.topic == "t"
