"""How much of a simulation is gone through: a part in the gate, all of it in `make test-full`."""

from __future__ import annotations

import os
from typing import Final

IS_FULL: Final = os.environ.get("HEADRACE_TEST_PROFILE") == "full"
