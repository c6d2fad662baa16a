from __future__ import annotations

import importlib.util

from checkout import ROOT
from hive_cases import HISTORIES, TYPES


def test_the_tables_of_types_and_changes_are_what_engines_answered() -> None:
    spec = importlib.util.spec_from_file_location("hive_page", ROOT / "tools" / "hive_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.PAGE.read_text(encoding="utf-8")
    assert text == module.page(text), "run: python tools/hive_page.py"
    assert {"Spark SQL", "Spark Thrift Server"} <= set(module.answers("types"))
    assert {"Spark SQL", "Spark Thrift Server", "HiveServer2"} <= set(module.answers("histories"))
    assert set(module.answers("types")["Spark SQL"]) == {case.name for case in TYPES}
    assert set(module.answers("histories")["Spark SQL"]) == {history.name for history in HISTORIES}
