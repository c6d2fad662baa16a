"""Power is lost at each moment in the life of a warehouse; from the surviving disk, the next load must complete the
tables.

All operations of loads on the files of a warehouse are recorded. For each prefix of them, the disk is rebuilt as it may
be after a loss of power, with only fsynced data guaranteed, and a new driver continues on it. Reported commits must
still be committed, nothing else may be visible, no load may refuse to run, and at the end every offset is in exactly
one published row. The metastore, the audit's database and the brokers lose nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from support.simulation.power_history import (
    WHOLE_LIFE,
    Aftermath,
    History,
    a_day_later,
    backfilled,
    compacted,
    more_messages,
    new_topics,
    nothing_new,
    of_an_older_release,
)
from support.simulation.power_loss import Named, pattern
from support.simulation.small_world import Lost, make_small

SEED = 20260101
HOURLY_STRIDE = 9
MIXES_APART = 4  # moments; at these a random mix of survivors is checked too, besides all and none


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small world for the drivers that continue. Their fsyncs do nothing, since their disk is not recorded."""
    make_small(monkeypatch)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def check(history: History, *, moments: Collection[int] | None = None, mixed: Collection[int] = ()) -> int:
    """Checks the disks that a loss of power may leave at the given moments, by default at all.

    Returns:
        The number of disks checked.

    Raises:
        Lost: a disk lacks data or has too much.
    """
    after, count = Aftermath(history), 0
    for name, image, outside in history.disks(seed=SEED, moments=moments, mixed=mixed):
        after.check(name, image, outside)
        count += 1
    return count


@pytest.mark.usefixtures("quick")
def test_after_a_loss_of_power_at_some_moments_of_two_loads_the_next_load_completes_them(memory_path: Path) -> None:
    """The small case for every hour. It detects every missing fsync except that of archives, which two loads do not
    write. The tests below cover all moments of longer histories."""
    history = History(memory_path / "disk").live([new_topics, more_messages])
    assert check(history, moments={*range(0, history.ends[-1], HOURLY_STRIDE), *history.ends}) > 30


@pytest.mark.simulation
@pytest.mark.usefixtures("quick")
def test_after_a_loss_of_power_at_any_moment_the_next_load_completes_the_tables(memory_path: Path) -> None:
    history = History(memory_path / "disk").live(WHOLE_LIFE)
    assert list((history.world.warehouse / "_headrace" / "archive").iterdir())
    assert list((history.world.warehouse / "_headrace" / "checkpoint").iterdir())
    assert check(history, mixed=range(0, history.ends[-1], MIXES_APART)) > 300


@pytest.mark.simulation
@pytest.mark.usefixtures("quick")
def test_a_loss_of_power_during_a_backfill_loses_no_row(memory_path: Path) -> None:
    history = History(memory_path / "disk").live([new_topics, more_messages, backfilled, a_day_later])
    first, last = history.ends[1], history.ends[-1]
    assert check(history, moments=range(first, last + 1), mixed=range(first, last, MIXES_APART)) > 150


@pytest.mark.simulation
@pytest.mark.usefixtures("quick")
def test_a_loss_of_power_while_the_format_is_written_makes_no_unreadable_log(memory_path: Path) -> None:
    history = History(memory_path / "disk").live([of_an_older_release, *WHOLE_LIFE[:1]])
    check(history, moments=range(history.ends[0], history.ends[0] + 40))


@pytest.mark.simulation
@pytest.mark.usefixtures("quick")
def test_a_load_fsyncs_names_left_by_a_killed_load_before_it_depends_on_them(memory_path: Path) -> None:
    """A load is killed, another load finds its files and continues, and then the power is lost."""
    root = memory_path / "disk"
    undisturbed = History(root).live(WHOLE_LIFE)
    for number, step in first_creations(undisturbed):
        shutil.rmtree(root)
        later = (nothing_new, a_day_later) if WHOLE_LIFE[step] is compacted else (nothing_new,)
        history = History(root, kill_before=number).live([*WHOLE_LIFE[: step + 1], *later])
        check(history, moments=[*first_removals(history, number), history.ends[-1]])


def first_removals(history: History, first: int) -> Iterator[int]:
    """For each kind of name, the first operation from `first` on that removes one. The named content must be safe
    elsewhere."""
    seen: set[str] = set()
    for number, operation in enumerate(history.recorder.operations[first:], first):
        if not isinstance(operation, Named) or operation.node is not None or operation.name.startswith("."):
            continue
        if pattern(operation.path) not in seen:
            seen.add(pattern(operation.path))
            yield number


def first_creations(history: History) -> Iterator[tuple[int, int]]:
    """For each kind of name that other processes read, the number after the first operation that creates one, and its
    step."""
    seen = set()
    for number, operation in enumerate(history.recorder.operations[:-1]):
        if not isinstance(operation, Named) or operation.node is None or operation.name.startswith("."):
            continue
        if "/staging/" in operation.path:
            continue  # only the run itself reads staging before its commit
        kind = (pattern(operation.path), pattern(operation.source))
        if kind not in seen:
            seen.add(kind)
            yield number + 1, next(step for step, end in enumerate(history.ends) if number <= end)


@pytest.mark.simulation
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "site",
    [
        "disk.fsync_directories_above .",
        "disk.fsync_directories_above new/data/warehouse",
        "files._fsync_directories new/data/warehouse",
        "files._fsync_directories new/data/warehouse/orders/dt=*-*-*/hr=*",
        "files._replace new/data/warehouse/orders/_schema/.*-*",
        "sink.finish new/data/warehouse/_headrace/staging/work-*/task-*-*/*.avro",
        "commit_storage._write_temporary new/data/warehouse/_headrace/tmp/.*-*",
        "commit_storage.persist new/data/warehouse/_headrace",
        "commit_storage.persist new/data/warehouse/_headrace/log",
        "commit_storage.persist new/data/warehouse/_headrace/archive",
        "commit_storage.persist new/data/warehouse/_headrace/schemas",
        "staging.persist new/data/warehouse/_headrace/staging",
        "staging.persist new/data/warehouse/_headrace/staging/work-*",
        "staging.persist new/data/warehouse/_headrace/staging/work-*/task-*-*",
    ],
)
def test_every_omitted_fsync_loses_data_at_some_moment(memory_path: Path, site: str) -> None:
    """Shows which promise of the storage each part of a load needs. That each fsync serves a promise is tested with the
    storage."""
    history = History(memory_path / "disk", without=site).live(WHOLE_LIFE)
    with pytest.raises(Lost):
        check(history, moments=history.ends)
        check(history)
