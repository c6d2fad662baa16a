"""The compiled core, for tests that compare it with the reference; without it they test the reference alone."""

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
"""The reason if there is neither a core nor a compiler, else "". A missing core despite a compiler fails the tests."""


def core_if_any() -> Library | None:
    """Returns the core, or None if it is not built and there is no compiler."""
    core = core_library()
    assert core is not None or NOT_BUILT, missing_core_reason()
    return core


def required_core() -> Library:
    """Returns the core. Skips the test if it is not built and there is no compiler."""
    core = core_if_any()
    if core is None:
        pytest.skip(f"{NOT_BUILT}, and there is no C compiler: only the reference is tested")
    return core
