from __future__ import annotations

import importlib.util

from support.checkout import ROOT


def test_docs_tables_of_rules_and_lints_are_current() -> None:
    spec = importlib.util.spec_from_file_location("compat_page", ROOT / "tools" / "compat_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.PAGE.read_text(encoding="utf-8")
    assert text == module.page(text), "run: python tools/compat_page.py"
    assert all(f"| `{name}` |" in text for name in module.CATALOGUE)
