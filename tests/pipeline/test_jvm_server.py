"""Messages about a JVM that has ended."""

from __future__ import annotations

import pytest

from headrace.pipeline.jvm_server import jvm_end_reason


@pytest.mark.parametrize("key", ["sql.memory", "hive.memory"])
@pytest.mark.parametrize("code", [3, 52])
def test_reason_of_a_jvm_out_of_memory_names_its_memory_and_the_setting(code: int, key: str) -> None:
    reason = jvm_end_reason(code, key, "640m")
    assert "640m" in reason
    assert key in reason


@pytest.mark.parametrize("code", [1, 137, -9])
def test_reason_of_another_end_names_its_code_and_the_log(code: int) -> None:
    reason = jvm_end_reason(code, "sql.memory", "640m")
    assert f" {code}; " in reason
    assert "logs/spark.log" in reason
    assert "sql.memory" not in reason
