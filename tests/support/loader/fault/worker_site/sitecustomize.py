"""Adds the stop points to Spark's Python workers. Python imports this module at its start, because the launcher adds
its directory to PYTHONPATH."""

from __future__ import annotations

import sys

if {"pyspark.daemon", "headrace.pipeline.worker_daemon"} & set(sys.orig_argv):
    from stop_points import wrap

    import headrace.loader.task
    import headrace.loader.write.task_files

    wrap(headrace.loader.task._Task, "run", "read:range")
    wrap(headrace.loader.write.task_files.TaskFiles, "_write", "write:block")
    wrap(headrace.loader.write.task_files.TaskFiles, "finish", "write:finish")
