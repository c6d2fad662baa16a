"""Numbers of Hypothesis examples, relative to the loaded profile."""

from __future__ import annotations

from hypothesis import settings


def examples(fraction: float) -> int:
    """Returns this fraction of the examples of the loaded Hypothesis profile, and at least 1.

    For property tests that take over 20 ms for each example: `@settings(max_examples=examples(0.1))` runs 2 examples
    in the profile "hourly", 20 in "gate" and 200 in "full". Cheaper tests leave the number to the profile.
    """
    return max(1, round(settings().max_examples * fraction))
