"""Extent of the simulations: a sample by default, all cases in `make test-full`."""

from __future__ import annotations

import os
from typing import Final

IS_FULL: Final = os.environ.get("HEADRACE_TEST_PROFILE") == "full"
