"""Runs the whole year and prints figures about it: `PYTHONPATH=tests python -m support.simulation.year`."""

from __future__ import annotations

import argparse
import contextlib
import resource
import tempfile
import time
from pathlib import Path

from support.simulation.year.analyst import Analyst, analyst_of
from support.simulation.year.life import Life
from support.simulation.year.plan import plan_year
from support.simulation.year.world import unhurried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--topics", type=int, default=200)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--rate", type=int, default=200, help="messages of the largest topic on a day")
    parser.add_argument("--often", type=float, default=1.0, help="how often things happen, beside the usual")
    parser.add_argument("--sql", action="store_true", help="on a real metastore, with questions to Spark between loads")
    arguments = parser.parse_args()
    started, cpu = time.monotonic(), time.process_time()
    plan = plan_year(arguments.seed, arguments.topics, arguments.days, rate=arguments.rate, frequency=arguments.often)
    analyst: Analyst | None = None
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(unhurried())
        if arguments.sql:
            analyst, executor = stack.enter_context(analyst_of(directory))
            life = Life(directory, arguments.seed, plan.topics, hive=executor, between=analyst.query_some)
        else:
            life = Life(directory, arguments.seed, plan.topics)
        life.live(arguments.days, plan.happenings)
    print(f"seed {arguments.seed}: {len(life.story.messages):,} messages, {life.reader.files_read:,} files read")
    if analyst:
        print(f"Spark was asked of {analyst.queries:,} topics, and was right")
    print(f"{time.monotonic() - started:.0f} s, {time.process_time() - cpu:.0f} s of CPU")
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")
    print("lost by the brokers and explained:", dict(life.lost))
    for name, number in sorted(life.event_counts.items()):
        print(f"{number:6,}  {name}")
    for size in life.sizes:
        print(size)


if __name__ == "__main__":
    main()
