from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from support.checkout import ROOT
from support.hive.hive_cases import HISTORIES, RECORDS, TYPES


@pytest.fixture(scope="module")
def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hive_page", ROOT / "tools" / "hive_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_docs_tables_match_engine_results(module: ModuleType) -> None:
    text = module.PAGE.read_text(encoding="utf-8")
    assert text == module.page(text), "run: python tools/hive_page.py"
    engines = {"Spark SQL", "Spark Thrift Server", "HiveServer2", "Pig, AvroStorage", "Pig, HCatLoader"}
    assert set(module.results("types")) == set(module.results("histories")) == engines
    assert set(module.results("types")["Spark SQL"]) == {case.name for case in TYPES}
    assert set(module.results("histories")["Spark SQL"]) == {history.name for history in (*HISTORIES, *RECORDS)}


@pytest.fixture
def equal_results(module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which every engine has the same result of one case."""
    monkeypatch.setattr(module, "GOLDEN", tmp_path)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    for name in module.ENGINES:
        result = {"added": {"columns": {"c": "string"}, "rows": [["x"], ["new"]]}}
        (tmp_path / f"{name}.histories.json").write_text(json.dumps(result), encoding="utf-8")
    return tmp_path


def test_page_needs_results_of_every_engine(module: ModuleType, equal_results: Path) -> None:
    (equal_results / "pig.histories.json").unlink()
    with pytest.raises(SystemExit, match=r"pig\.histories\.json"):
        module.changes()


def test_page_needs_every_case_of_each_engine(module: ModuleType, equal_results: Path) -> None:
    (equal_results / "hiveserver2.histories.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"\bHiveServer2\b.*\badded\b"):
        module.changes()


def test_page_lists_differing_results_by_engine(module: ModuleType, equal_results: Path) -> None:
    assert module.changes().endswith("| added | `c` `string` | `x` → `new` | all 5 |\n")
    for name, result in (
        ("pig", {"columns": {"c": "chararray"}, "refused": "missing required field c"}),
        ("pig_hcatalog", {"columns": {"c": "chararray"}, "rows": [["x"], ["new"]]}),
        ("hiveserver2", {"columns": {"c": "varchar"}, "rows": [["x"], ["new"]]}),
    ):
        (equal_results / f"{name}.histories.json").write_text(json.dumps({"added": result}), encoding="utf-8")
    assert module.changes().endswith(
        "| HiveServer2: `c` `varchar`, `x` → `new`; Pig, AvroStorage: refused, `missing required field c` |\n"
    )
