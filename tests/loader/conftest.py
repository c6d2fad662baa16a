"""Fixtures of all loader tests."""

from __future__ import annotations

import pytest

from headrace import avro_codec
from headrace.loader import build
from support.loader.compiled_core import NOT_BUILT


@pytest.fixture(autouse=True)
def no_note_on_the_missing_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the note that rows are made in Python because the core is not built; these tests compare all notes. A test
    that removes the core gives another reason, whose note stays."""
    if NOT_BUILT:
        monkeypatch.setattr(
            "headrace.loader.run.missing_core_warnings",
            lambda: () if avro_codec.missing_core_reason() == NOT_BUILT else build.missing_core_warnings(),
        )
