"""What is said of a JVM that has ended."""

from __future__ import annotations

import pytest

from headrace.pipeline.serving import jvm_end


@pytest.mark.parametrize("key", ["sql.memory", "hive.memory"])
@pytest.mark.parametrize("code", [3, 52])
def test_a_jvm_that_ran_out_of_memory_names_whose_and_the_setting(code: int, key: str) -> None:
    assert jvm_end(code, key, "640m") == f"its JVM had not enough memory with 640m: give it more with {key}"


@pytest.mark.parametrize("code", [1, 137, -9])
def test_any_other_end_leads_to_the_log(code: int) -> None:
    assert jvm_end(code, "sql.memory", "640m") == f"its JVM ended with code {code}; see logs/spark.log"
