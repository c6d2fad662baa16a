from __future__ import annotations

import importlib.util
from pathlib import Path

from headrace.settings import load_settings
from support.checkout import ROOT
from support.pages import block, page


def test_settings_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("settings_page", ROOT / "tools" / "settings_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run: python tools/settings_page.py"
    rows = [line for line in module.page().splitlines() if line.startswith("| `")]
    assert all(not line.endswith("|  |") for line in rows), "a setting without a description"


def test_example_of_topic_tables_loads(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(block(page("docs/settings.md"), "[[loader.topic]]"), encoding="utf-8")
    loader = load_settings(config=file).loader
    assert (loader.of_topic("page.views").partition_by, loader.of_topic("orders").partition_by) == ("day", "auto")
    assert loader.of_topic("page.views").future_records == "clamp"
