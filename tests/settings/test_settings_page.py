from __future__ import annotations

import importlib.util

from checkout import ROOT


def test_the_page_of_settings_is_current() -> None:
    spec = importlib.util.spec_from_file_location("settings_page", ROOT / "tools" / "settings_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run: python tools/settings_page.py"
    rows = [line for line in module.page().splitlines() if line.startswith("| `")]
    assert all(not line.endswith("|  |") for line in rows), "a setting without a meaning"
