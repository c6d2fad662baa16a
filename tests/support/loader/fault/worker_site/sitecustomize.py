"""Puts stop points into Spark's Python workers; found through PYTHONPATH by every Python that the launcher starts."""

from __future__ import annotations

import sys

if {"pyspark.daemon", "headrace.pipeline.worker_daemon"} & set(sys.orig_argv):
    from stop_points import wrap

    import headrace.loader.task
    import headrace.loader.write.task_files

    wrap(headrace.loader.task._Task, "run", "read:range")
    wrap(headrace.loader.write.task_files.TaskFiles, "_write", "write:block")
    wrap(headrace.loader.write.task_files.TaskFiles, "finish", "write:finish")
