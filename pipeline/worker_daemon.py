"""Spark's daemon of Python workers, with the imports of load tasks.

Spark ends a worker after a minute without work and forks a new one from this daemon for the next load. The imports take
two thirds of the time of a small task in a new worker; the daemon does them once. No import may start a thread, since a
fork does not copy threads. Spark runs it as `python -m headrace.pipeline.worker_daemon`.
"""

from __future__ import annotations

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import headrace.loader.job  # noqa: F401

if __name__ == "__main__":
    manager()
