"""The pool: work units on Spark, one per partition of an RDD, with no shuffle. The one module that knows pyspark.

What a task returns comes back as the task's own result, so of several attempts exactly the one that Spark took
counts, and staged files are never found by listing a folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from headrace.loader.errors import PoolFailed
from headrace.loader.rewrite.merge import MergeResult, MergeUnit, run_merge_unit
from headrace.loader.task import run_work_unit
from headrace.loader.work_unit import UnitResult, WorkUnit

T = TypeVar("T")
R = TypeVar("R")

REASON_CHARS_MAX = 300  # Spark's own message repeats the whole Python traceback


def run_units(context: Any, units: Sequence[WorkUnit]) -> list[UnitResult]:
    """Reads the ranges of work units, see `run_on_pool`."""
    return run_on_pool(context, run_work_unit, units, f"headrace load {units[0].work_id}" if units else "")


def run_merges(context: Any, units: Sequence[MergeUnit]) -> list[MergeResult]:
    """Merges files, see `run_on_pool`."""
    return run_on_pool(context, run_merge_unit, units, f"headrace compact {units[0].work_id}" if units else "")


def run_on_pool(context: Any, run: Callable[[T], R], units: Sequence[T], description: str) -> list[R]:
    """Runs every unit in a task of its own and returns the results in the order of the units.

    Args:
        context: a SparkContext.

    Raises:
        PoolFailed: Spark gave a task up.
    """
    if not units:
        return []

    def run_all(part: Iterable[T]) -> Iterator[R]:
        return map(run, part)

    context.setJobDescription(description)
    try:
        results: list[R] = context.parallelize(units, len(units)).mapPartitions(run_all).collect()
    except (Py4JError, PySparkException) as error:
        raise PoolFailed(f"the tasks could not be run: {_reason(error)}; nothing was decided, run it again") from error
    return results


def _reason(error: Exception) -> str:
    """The line that says what happened: of a Python worker's traceback the last one, of Java's the first."""
    try:
        text = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    except Exception:  # the JVM that should tell is gone
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (told[-1] if told else lines[0] if lines else type(error).__name__)[:REASON_CHARS_MAX]
