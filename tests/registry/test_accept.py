"""Content negotiation by the `Accept` header."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.registry.api.responses import PRODUCED, negotiate_content_type
from support.cases import all_cases

V1, ANY_RELEASE, JSON = (name for name, _ in PRODUCED)


def test_accept_header_selects_the_content_type() -> None:
    with all_cases() as case:
        for accept, expected in [
            ("", V1),
            (" , ", V1),
            ("*", V1),
            ("*;q=0.2", V1),
            ("*/x", V1),
            ("application/*", V1),
            ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", V1),
            ("text/html, image/gif, image/jpeg", None),
            # Parameters other than the weight are ignored.
            (f"{V1}; qs=0.9", V1),
            ("application/json; charset=utf-8", JSON),
            ("application/json;charset=utf-8;q=.5", JSON),
            ("APPLICATION/JSON; Q=1", JSON),
            # Separators in quoted parameters are ignored.
            ('application/json; a="b, text/html;q=0", text/html', JSON),
            (r'application/json; a="\", */*"', JSON),
            ('application/json; a="*/*', JSON),
            # The most specific range counts, in any position.
            (f"{V1};q=0, */*", ANY_RELEASE),
            (f"*/*, {V1};q=0", ANY_RELEASE),
            (f"application/*;q=0, {JSON}", JSON),
            (f"*/*;q=0, {JSON};q=.1", JSON),
            (f"{JSON};q=0.1, {JSON};q=0", JSON),
            ("*/*;q=0", None),
            ("*;q=0.000", None),
            # The client's weight is multiplied with the server's.
            (f"{JSON}, {V1};q=0.4", JSON),
            (f"{JSON}, {V1};q=0.6", V1),
            (f"{JSON};q=7, {V1};q=1", V1),
            # Invalid ranges and ranges with invalid weights are ignored.
            ("json", None),
            (f"{V1};q=x, {JSON}", JSON),
            (f"{V1};q=-1, {JSON}", JSON),
            (f"{V1};q=, {JSON}", JSON),
            (f"{V1};q=1.2.3, {JSON}", JSON),
            (f"{V1};q=٣, {JSON}", JSON),
            ("application, application/xml", None),
            ("applications/json", None),
        ]:
            with case((accept, expected)):
                assert negotiate_content_type(accept) == expected


@given(st.text(alphabet='*/;,q=. "\\aj0159', max_size=60))
def test_any_accept_header_gives_a_produced_type_or_none(accept: str) -> None:
    assert negotiate_content_type(accept) in (V1, ANY_RELEASE, JSON, None)


@given(st.permutations([f"{V1};q=.3", f"{JSON};q=.9", "application/*;q=.2", "*;q=.1", "text/html"]))
def test_order_of_ranges_is_irrelevant(ranges: list[str]) -> None:
    assert negotiate_content_type(",".join(ranges)) == JSON
