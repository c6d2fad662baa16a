"""Results of engines in tests/golden/hive_readers, the source of the tables of docs/hive.md.

`HEADRACE_REWRITE_GOLDEN=1` rewrites the files, and `tools/hive_page.py` generates the tables from all of them.
"""

from __future__ import annotations

import json
import os
from typing import Any

from support.checkout import GOLDEN

REWRITE = os.environ.get("HEADRACE_REWRITE_GOLDEN") == "1"


def check_golden_results(engine: str, part: str, results: dict[str, Any]) -> None:
    """Compares the results of an engine with its golden file.

    Args:
        engine: its name in `tools/hive_page.py`.
        part: types or histories.
    """
    path = GOLDEN / "hive_readers" / f"{engine}.{part}.json"
    if REWRITE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8")) == results
