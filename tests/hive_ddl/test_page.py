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


def test_the_tables_of_types_and_changes_are_what_engines_answered(module: ModuleType) -> None:
    text = module.PAGE.read_text(encoding="utf-8")
    assert text == module.page(text), "run: python tools/hive_page.py"
    engines = {"Spark SQL", "Spark Thrift Server", "HiveServer2", "Pig, AvroStorage", "Pig, HCatLoader"}
    assert set(module.answers("types")) == set(module.answers("histories")) == engines
    assert set(module.answers("types")["Spark SQL"]) == {case.name for case in TYPES}
    assert set(module.answers("histories")["Spark SQL"]) == {history.name for history in (*HISTORIES, *RECORDS)}


@pytest.fixture
def answered(module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory where every engine has answered one case alike."""
    monkeypatch.setattr(module, "GOLDEN", tmp_path)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    for name in module.ENGINES:
        said = {"added": {"columns": {"c": "string"}, "rows": [["x"], ["new"]]}}
        (tmp_path / f"{name}.histories.json").write_text(json.dumps(said), encoding="utf-8")
    return tmp_path


def test_a_page_without_an_engine_is_not_made(module: ModuleType, answered: Path) -> None:
    (answered / "pig.histories.json").unlink()
    with pytest.raises(SystemExit, match=r"pig\.histories\.json"):
        module.changes()


def test_a_page_with_an_engine_that_was_not_asked_all_is_not_made(module: ModuleType, answered: Path) -> None:
    (answered / "hiveserver2.histories.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"\bHiveServer2\b.*\badded\b"):
        module.changes()


def test_what_an_engine_answers_otherwise_stands_beside_its_name(module: ModuleType, answered: Path) -> None:
    assert module.changes().endswith("| added | `c` `string` | `x` → `new` | all 5 |\n")
    for name, said in (
        ("pig", {"columns": {"c": "chararray"}, "refused": "missing required field c"}),
        ("pig_hcatalog", {"columns": {"c": "chararray"}, "rows": [["x"], ["new"]]}),
        ("hiveserver2", {"columns": {"c": "varchar"}, "rows": [["x"], ["new"]]}),
    ):
        (answered / f"{name}.histories.json").write_text(json.dumps({"added": said}), encoding="utf-8")
    assert module.changes().endswith(
        "| HiveServer2: `c` `varchar`, `x` → `new`; Pig, AvroStorage: refused, `missing required field c` |\n"
    )
