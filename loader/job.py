"""The pool: work units on Spark, one per partition of an RDD, with no shuffle. The one module that knows pyspark.

What a task returns comes back as the task's own result, so of several attempts exactly the one that Spark took
counts, and staged files are never found by listing a folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError

from loader.errors import PoolFailed
from loader.task import run_work_unit
from loader.work_unit import UnitResult, WorkUnit

REASON_CHARS_MAX = 300  # Spark's own message repeats the whole Python traceback


def run_units(session: Any, units: Sequence[WorkUnit]) -> list[UnitResult]:
    """Runs every unit in a task of its own and returns the results in the order of the units.

    Args:
        session: a SparkSession.

    Raises:
        PoolFailed: Spark gave a task up.
    """
    if not units:
        return []
    context = session.sparkContext
    context.setJobDescription(f"headrace load {units[0].work_id}")
    try:
        results: list[UnitResult] = context.parallelize(units, len(units)).mapPartitions(_run).collect()
    except Py4JJavaError as error:
        raise PoolFailed(f"the tasks could not be run: {_reason(error)}; nothing was decided, load again") from error
    return results


def _run(units: Iterable[WorkUnit]) -> Iterator[UnitResult]:
    for unit in units:
        yield run_work_unit(unit)


def _reason(error: Py4JJavaError) -> str:
    text = str(error.java_exception.getMessage() or error)
    line = next((line.strip() for line in text.splitlines() if line.strip()), "unknown")
    return line[:REASON_CHARS_MAX]
