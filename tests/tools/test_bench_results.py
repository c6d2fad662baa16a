"""The results of the benchmarks: their summary, and the files that they append to."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.checkout import ROOT


def module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{Path(path).stem}", ROOT / "bench" / path)
    assert spec is not None
    assert spec.loader is not None
    loaded = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(loaded)
    return loaded


def test_keep_appends_to_earlier_results(tmp_path: Path) -> None:
    results = module("support/results.py")
    results.append_result("x", "first", "| a |\n|---|\n| 1 |\n", tmp_path / "results")
    results.append_result("x", "second", results.as_printed(["one", "two"]), tmp_path / "results")
    content = (tmp_path / "results" / "x.md").read_text()
    assert content == "first\n\n| a |\n|---|\n| 1 |\n\nsecond\n\n```\none\ntwo\n```\n\n"
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d, \d+ cores, \w+, Python 3\.\d+\.\d+\S*, snappy", results.describe_run("snappy")
    )


@pytest.mark.parametrize(
    ("ratios", "slower"), [({"hdfs": 1.0, "s3a": 2.5}, []), ({"hdfs": 0.99, "s3a": 1.2}, ["hdfs"]), ({}, [])]
)
def test_slower_sinks_than_sparks_are_named(ratios: dict[str, float], slower: list[str]) -> None:
    assert module("storage.py").slower_than_spark(ratios) == slower


@pytest.mark.parametrize("name", ["hive", "load", "storage"])
def test_benchmarks_with_comparisons_have_the_flag_keep(name: str) -> None:
    assert f'add_keep_flag(parser, "{name}")' in (ROOT / "bench" / f"{name}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("messages", [1, 10, 1_000_000])
def test_cases_of_scale_have_a_message_in_each_partition(messages: int) -> None:
    for _, cases in module("scale.py").cases_of(messages).values():
        assert all(case.in_partition >= 1 for case in cases)
