"""Runs work units on Spark, one per partition of an RDD, without a shuffle. Of the loader, only this module imports
pyspark.

A task returns the names of its files in its result. If Spark runs several attempts of a task, only the files of the
accepted attempt are committed. Staged files are found by these names, not by listing directories.

On a local file system the tasks write the files. On other storage they return the blocks of their files as rows, and
Spark's text sink writes them, with Spark's delegation tokens, encryption and committer. The task's result is then an
accumulator update, which Spark counts once, for the accepted attempt. Rows are sorted by file before the write, so a
task has one open file, regardless of the number of time partitions.
"""

from __future__ import annotations

import dataclasses
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import AccumulatorParam
from pyspark.errors import PySparkException

from headrace.loader.errors import PoolFailed
from headrace.loader.inspect.recount_file import FileRows, RecountUnit, run_recount_unit
from headrace.loader.rewrite.merge import MergeResult, MergeUnit, run_merge_unit
from headrace.loader.storage.hadoop.prompt_close import prompt_close
from headrace.loader.task import run_work_unit
from headrace.loader.work_unit import UnitResult, WorkUnit
from headrace.loader.write.file_rows import Row, RowSink, new_text_sync, row_file, rows_of

T = TypeVar("T")
R = TypeVar("R")

SINK_OPTIONS: Mapping[str, str] = {
    "compression": "none",
    "maxRecordsPerFile": "0",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Version 2 moves a task's files when the task commits, and not again, one by one, when the job commits. Files of a
    # failed attempt have other names and are in no result.
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
}
"""Options of Spark's text sink. They override the cluster's configuration."""

MERGE_TASKS_PER_CORE = 4
RECOUNT_FILES_PER_CORE = 16
RECOUNT_JOBS_MAX = 50
REASON_CHARS_MAX = 300  # Spark's own message repeats the whole Python traceback


def run_units(context: Any, units: Sequence[WorkUnit]) -> list[UnitResult]:
    """Runs the work units of a load on a local file system, where the tasks write the files. Each unit is a separate
    Spark task. Returns the results in the order of the units.

    Args:
        context: a SparkContext.

    Raises:
        PoolFailed: a task failed in all its attempts, or Spark failed.
    """
    return run_on_pool(context, run_work_unit, units, f"headrace load {units[0].run_id}" if units else "")


class ResultsAccumulator(AccumulatorParam):  # type: ignore[misc]  # pyspark says nothing of its types here
    """A Spark accumulator that collects the results of tasks. Each task adds a tuple of results; the value is the
    concatenation of these tuples in any order."""

    def zero(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        return ()

    def addInPlace(  # noqa: N802  # pyspark's name
        self, value1: tuple[Any, ...], value2: tuple[Any, ...]
    ) -> tuple[UnitResult, ...]:
        return value1 + value2


def write_units(
    session: Any, units: Sequence[WorkUnit], list_written: Callable[[str], Mapping[str, str]]
) -> list[UnitResult]:
    """Runs the work units of a load whose files are not on a local file system: Spark writes the data files. Returns
    the result of each unit (its offsets and files), in the order of the units.

    Args:
        session: a SparkSession.
        list_written: returns the files that Spark wrote below a directory, as paths by name. The name is the one that
            the task gave to each of its blocks.

    Raises:
        PoolFailed: a task failed in all its attempts, or Spark failed, for example to write.
        OSError: the written files cannot be listed.
    """
    if not units:
        return []
    # Every write has its own directory, because Spark deletes temporary files in the directory when a write ends.
    subdirectory = secrets.token_hex(8)
    directory = f"{units[0].settings.staging}/{subdirectory}"
    sync = new_text_sync()
    accumulator = session.sparkContext.accumulator((), ResultsAccumulator())
    session.sparkContext.setJobDescription(f"headrace load {units[0].run_id}")

    def rows_of_units(part: Iterable[WorkUnit]) -> Iterator[Row]:
        results: list[UnitResult] = []

        def run_work_units(put: Callable[[Row], None]) -> None:
            new_sink = partial(_row_sink, put, sync.encode())
            results.extend(run_work_unit(unit, new_sink, sync.encode()) for unit in part)

        yield from rows_of(run_work_units)
        accumulator.add(tuple(results))

    try:
        rows = session.sparkContext.parallelize(units, len(units)).mapPartitions(rows_of_units)
        write_rows(session, rows, sync, directory)
    except (Py4JError, PySparkException) as error:
        raise PoolFailed(
            f"the Spark tasks could not be run: {_reason(error)}; their results were not committed, "
            "run the command again"
        ) from error
    paths = list_written(directory)
    results = {result.task: _with_written_paths(result, subdirectory, paths) for result in accumulator.value}
    accumulator.value = ()  # pyspark references every accumulator until the process ends
    return [results[unit.task] for unit in units]


def write_rows(session: Any, rows: Any, sync: str, directory: str) -> None:
    """Writes files into a directory through Spark. Each file is the concatenation of the blocks of its rows, in the
    order of their numbers.

    Args:
        session: a SparkSession.
        rows: an RDD of `Row`: name of the file, number of the block in the file, bytes of the block.
        sync: the sync marker of the files, which Spark writes after each block.
    """
    frame = session.createDataFrame(rows, "file string, number int, block binary", verifySchema=False)
    texts = frame.sortWithinPartitions("file", "number").selectExpr("file", "cast(block as string) as value")
    options = dict(SINK_OPTIONS)
    if directory.startswith("hdfs:"):
        options |= prompt_close(session._jvm, session.sparkContext._jsc.hadoopConfiguration())
    texts.write.partitionBy("file").options(**options).option("lineSep", sync).mode("append").text(directory)


def _row_sink(put: Callable[[Row], None], sync: bytes, _location: str, task: int) -> RowSink:
    return RowSink(put, sync, task)


def _with_written_paths(result: UnitResult, subdirectory: str, paths: Mapping[str, str]) -> UnitResult:
    """Returns a task's result with the paths under which Spark wrote its files. A file that Spark did not write gets
    its path from the task's result, so that the check before the commit reports it as missing.

    Args:
        subdirectory: the directory into which `write_units` wrote, below the run's staging directory.
        paths: the path below that directory, by the name that the file has in the rows of blocks that Spark wrote.
    """
    files = tuple(
        dataclasses.replace(file, path=f"{subdirectory}/{paths.get(row_file(file.path), file.path)}")
        for file in result.files
    )
    return dataclasses.replace(result, files=files)


def run_merges(context: Any, units: Sequence[MergeUnit]) -> list[MergeResult]:
    """Runs the merge units of a compaction in Spark tasks, several units in each task, because most units take less
    time than the start of a task. Returns the results in the order of the units.

    Args:
        context: a SparkContext.

    Raises:
        PoolFailed: a task failed in all its attempts, or Spark failed.
    """
    description = f"headrace compact {units[0].run_id}" if units else ""
    tasks_max = MERGE_TASKS_PER_CORE * context.defaultParallelism
    return run_on_pool(context, run_merge_unit, units, description, tasks_max)


def run_recounts(
    context: Any, units: Sequence[RecountUnit], show: Callable[[int], object] = lambda done: None
) -> Iterator[FileRows]:
    """Counts files in Spark tasks, without a shuffle, and yields their rows. Runs several jobs in sequence, so
    that memory of the driver is bounded and the progress is known.

    Args:
        context: a SparkContext.
        show: called before each job with the number of files that are done.

    Raises:
        PoolFailed: a task failed in all its attempts, or Spark failed.
    """
    files_per_job = max(RECOUNT_FILES_PER_CORE * context.defaultParallelism, len(units) // RECOUNT_JOBS_MAX)
    tasks_max = MERGE_TASKS_PER_CORE * context.defaultParallelism
    for start in range(0, len(units), files_per_job):
        show(start)
        part = units[start : start + files_per_job]
        yield from run_on_pool(context, run_recount_unit, part, "headrace audit recount", tasks_max)


def run_on_pool(
    context: Any, run: Callable[[T], R], units: Sequence[T], description: str, tasks_max: int | None = None
) -> list[R]:
    """Calls `run` for every unit in a separate Spark task. Returns the results in the order of the units.

    Args:
        context: a SparkContext.
        description: the name of the job in Spark's user interface.
        tasks_max: the maximum number of tasks; with more units, a task runs several.

    Raises:
        PoolFailed: a task failed in all its attempts, or Spark failed.
    """
    if not units:
        return []

    def run_all(part: Iterable[T]) -> Iterator[R]:
        return map(run, part)

    context.setJobDescription(description)
    try:
        results: list[R] = (
            context.parallelize(units, min(len(units), tasks_max or len(units))).mapPartitions(run_all).collect()
        )
    except (Py4JError, PySparkException) as error:
        raise PoolFailed(
            f"the Spark tasks could not be run: {_reason(error)}; their results were not committed, "
            "run the command again"
        ) from error
    return results


def _reason(error: Exception) -> str:
    """Returns the informative line of an error: the last of a Python traceback, the first of a Java stack trace."""
    try:
        text = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    except Exception:  # the JVM has died
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    error_lines = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (error_lines[-1] if error_lines else lines[0] if lines else type(error).__name__)[:REASON_CHARS_MAX]
