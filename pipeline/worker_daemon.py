"""Spark's daemon of Python workers, with what the tasks of loads import.

Spark ends a worker that had nothing to do for a minute, and the next load gets a new one, forked from this daemon. Two
thirds of what a task of a few messages takes in a new worker are its imports, which are done here, once. No import may
start a thread, since a fork leaves threads behind. Spark runs it as `python -m headrace.pipeline.worker_daemon`.
"""

from __future__ import annotations

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import headrace.loader.job  # noqa: F401

if __name__ == "__main__":
    manager()
