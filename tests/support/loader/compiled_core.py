"""The compiled core, for tests that have its word beside the reference's; without it, the reference alone."""

from __future__ import annotations

import pytest

from headrace.avro_codec import core_library, missing_core_reason
from headrace.avro_codec.core.build import BuildError, compiler
from headrace.avro_codec.core.library import Library


def _is_there_a_compiler() -> bool:
    try:
        compiler()
    except BuildError:
        return False
    return True


NOT_BUILT = "" if core_library() is not None or _is_there_a_compiler() else missing_core_reason()
"""Why there is no core, where nothing here could have compiled it; with a compiler its absence is a mistake."""


def core_if_any() -> Library | None:
    """None where nothing here could have compiled it."""
    core = core_library()
    assert core is not None or NOT_BUILT, missing_core_reason()
    return core


def required_core() -> Library:
    """Skips the test where nothing here could have compiled it."""
    core = core_if_any()
    if core is None:
        pytest.skip(f"{NOT_BUILT}, and no C compiler is here: the reference is tested alone")
    return core
