"""Rewriting of paths and queries below `/contexts/{context}`."""

from __future__ import annotations

from urllib.parse import parse_qsl

from hypothesis import given
from hypothesis import strategies as st

from headrace.registry.api.app import without_context_prefix
from support.cases import all_cases


def test_context_prefix_becomes_a_qualified_subject() -> None:
    with all_cases() as case:
        for path, query, expected in [
            ("/contexts/.c/subjects/a%2Fb/versions", "", ("/subjects/%3A.c%3Aa%2Fb/versions", "")),
            ("/contexts/c/subjects//versions", "", ("/subjects/%3A.c%3A/versions", "")),
            ("/contexts/%2Ec/subjects/a", "deleted=true", ("/subjects/%3A.c%3Aa", "deleted=true")),
            ("/contexts/%C3%A4%20b/subjects/a", "", ("/subjects/%3A.%C3%A4%20b%3Aa", "")),
            ("/contexts/.c/compatibility/subjects/a/versions", "", ("/compatibility/subjects/%3A.c%3Aa/versions", "")),
            ("/contexts/.c/schemas/ids/1", "", ("/schemas/ids/1", "subject=%3A.c%3A")),
            (
                "/contexts/.c/schemas/ids/1",
                "fetchMaxId=true&subject=a",
                ("/schemas/ids/1", "subject=%3A.c%3Aa&fetchMaxId=true"),
            ),
            ("/contexts/.c/schemas/guids/x", "", ("/schemas/guids/x", "")),
            ("/contexts/.c/subjects", "limit=", ("/subjects", "subjectPrefix=%3A.c%3A&limit=")),
            ("/contexts/.c/config", "", ("/config/%3A.c%3A", "")),
            ("/contexts/./config/a", "", ("/config/a", "")),
            # Requests without a context prefix, or with an invalid one.
            ("/contexts", "", ("/contexts", "")),
            ("/contexts/.c", "", ("/contexts/.c", "")),
            ("/subjects/contexts/versions", "", ("/subjects/contexts/versions", "")),
            ("/subjects/a/contexts/b", "", ("/subjects/a/contexts/b", "")),
            ("/contexts/a%3Ab/subjects", "x=1", ("/contexts/a%3Ab/subjects", "x=1")),
            ("/contexts/%00/subjects", "", ("/contexts/%00/subjects", "")),
            ("", "", ("", "")),
        ]:
            with case((path, query, expected)):
                assert without_context_prefix(path, query) == expected


@given(st.text(st.sampled_from("/:.%*cs"), max_size=20), st.text(st.sampled_from("=&%:.a"), max_size=10))
def test_any_path_below_a_context_can_be_rewritten(rest: str, query: str) -> None:
    path, rewritten = without_context_prefix(f"/contexts/.c/{rest}", query)
    assert path.startswith("/")
    assert isinstance(parse_qsl(rewritten), list)
