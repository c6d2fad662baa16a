"""For tests of the loader."""

from __future__ import annotations

import pytest

from headrace import avro_codec
from headrace.loader import build
from support.loader.compiled_core import NOT_BUILT


@pytest.fixture(autouse=True)
def nothing_of_the_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads of a machine without core and compiler say each time what makes the rows; these tests ask what else they
    say. A test that takes the core away gives another reason."""
    if NOT_BUILT:
        monkeypatch.setattr(
            "headrace.loader.run.why_slow",
            lambda: () if avro_codec.missing_core_reason() == NOT_BUILT else build.why_slow(),
        )
