"""What an engine said, kept in tests/golden/hive_readers: the tables of docs/hive.md.

`HEADRACE_REWRITE_GOLDEN=1` writes the files anew, and `tools/hive_page.py` makes the tables from all of them.
"""

from __future__ import annotations

import json
import os
from typing import Any

from support.checkout import GOLDEN

REWRITE = os.environ.get("HEADRACE_REWRITE_GOLDEN") == "1"


def check_golden_results(engine: str, part: str, said: dict[str, Any]) -> None:
    """Args:
    engine: as `tools/hive_page.py` calls it.
    part: types or histories.
    """
    path = GOLDEN / "hive_readers" / f"{engine}.{part}.json"
    if REWRITE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8")) == said
