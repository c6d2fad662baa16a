"""Extent of the simulations: a sample by default, all cases in `make test-full`."""

from __future__ import annotations

import os
from typing import Final

IS_FULL: Final = os.environ.get("HEADRACE_TEST_PROFILE") == "full"


def every(step: int) -> int:
    """Returns the stride of a simulation through its moments: `step`, or 1 in `make test-full`."""
    return 1 if IS_FULL else step
