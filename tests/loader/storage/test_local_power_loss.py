"""The promises of the storage hold after a loss of power at any later moment, and depend on every fsync.

Each use of the storage is recorded. For each moment, the possible disks after a loss of power are checked: without all
changes that were not fsynced, with only their removals, or with a random mix. Then each fsync is omitted in turn: some
promise must break.
"""

from __future__ import annotations

import ast
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

from headrace.loader.storage.local import commit_storage, disk, files, local_storage, sink
from headrace.loader.storage.local.sink import LocalSink
from headrace.loader.storage.protocols import FinishedFile, Publication
from support.loader.file_checksums import checksum_of
from support.simulation.power_loss import Forced, Killed, OneByOne, Recorder, Survivors, images

NAME = "orders/dt=2026-01-01/hr=00/0-1-a.avro"
CONTENT = b"whole"
SEED = 20260101
MIXES = 4  # random mixes per moment, besides all and none


@dataclass
class Warehouse:
    """A warehouse in a new directory of `root`. `promises` are the conditions that must hold, each from an operation
    on."""

    root: Path
    recorder: Recorder
    promises: list[tuple[int, Callable[[], bool]]] = field(default_factory=list)
    staged: str = ""

    def __post_init__(self) -> None:
        self.directory = self.root / "new" / "warehouse"
        self.storage = local_storage(self.directory)
        self.storage.commits.prepare()

    def promise(self, holds: Callable[[], bool]) -> None:
        self.promises.append((len(self.recorder.operations) - 1, holds))

    def is_intact(self, name: str) -> bool:
        path = self.directory / name
        return path.is_file() and path.read_bytes() == CONTENT

    def stage(self) -> list[FinishedFile]:
        """Stages a file as a task does."""
        task = LocalSink(self.storage.staging.location("w"), 1)
        task.append("000001.avro", CONTENT)
        task.finish(["000001.avro"])
        self.staged = f"{task.directory}/000001.avro"
        return [FinishedFile(self.staged, len(CONTENT))]

    def publish(self) -> None:
        checksum = checksum_of(CONTENT)
        self.storage.files.publish([Publication("orders", "w", self.staged, NAME, len(CONTENT), checksum)])


@contextmanager
def killed_before_fsync(module: ModuleType) -> Iterator[None]:
    """The call in this context is killed at its first fsync of a name."""

    def die(*_: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module, "fsync", die)
        yield


def a_commit(warehouse: Warehouse) -> None:
    assert warehouse.storage.commits.put_if_absent("log/1", CONTENT)
    warehouse.promise(lambda: warehouse.is_intact("_headrace/log/1"))


def a_commit_in_a_directory_of_a_killed_writer(warehouse: Warehouse) -> None:
    with killed_before_fsync(commit_storage):
        warehouse.storage.commits.put_if_absent("log/1", CONTENT)
    assert warehouse.storage.commits.put_if_absent("log/2", CONTENT)
    warehouse.promise(lambda: warehouse.is_intact("_headrace/log/2"))


def a_commit_of_a_killed_writer(warehouse: Warehouse) -> None:
    with killed_before_fsync(commit_storage):
        warehouse.storage.commits.put_if_absent("log/1", CONTENT)
    warehouse.storage.commits.persist("log/1")
    warehouse.promise(lambda: warehouse.is_intact("_headrace/log/1"))


def a_hint_that_is_replaced(warehouse: Warehouse) -> None:
    path = warehouse.directory / "_headrace" / "cursor" / "files.json"
    warehouse.promise(lambda: not path.exists() or path.read_bytes() in (b"old", b"new"))
    warehouse.storage.commits.replace("cursor/files.json", b"old")
    warehouse.storage.commits.replace("cursor/files.json", b"new")


def a_staged_file(warehouse: Warehouse) -> None:
    warehouse.storage.staging.persist("w", warehouse.stage())
    warehouse.promise(lambda: warehouse.is_intact(f"_headrace/staging/w/{warehouse.staged}"))


def a_staged_file_of_another_run(warehouse: Warehouse) -> None:
    found = warehouse.stage()
    warehouse.storage.staging.persist("w", found)
    warehouse.storage.staging.move("w", found, "w2")
    warehouse.promise(lambda: warehouse.is_intact(f"_headrace/staging/w2/{warehouse.staged}"))


def a_published_file(warehouse: Warehouse) -> None:
    warehouse.storage.staging.persist("w", warehouse.stage())
    staged = f"_headrace/staging/w/{warehouse.staged}"
    warehouse.promise(lambda: warehouse.is_intact(NAME) or warehouse.is_intact(staged))
    warehouse.publish()
    warehouse.promise(lambda: warehouse.is_intact(NAME))


def a_file_of_a_killed_publisher(warehouse: Warehouse) -> None:
    warehouse.storage.staging.persist("w", warehouse.stage())
    staged = f"_headrace/staging/w/{warehouse.staged}"
    with killed_before_fsync(files):
        warehouse.publish()
    warehouse.promise(lambda: warehouse.is_intact(NAME) or warehouse.is_intact(staged))
    warehouse.publish()
    warehouse.storage.staging.drop("w")
    warehouse.promise(lambda: warehouse.is_intact(NAME))


def a_second_name(warehouse: Warehouse) -> None:
    a_published_file(warehouse)
    warehouse.promises.clear()
    target = f"_g1/{NAME}"
    warehouse.promise(lambda: warehouse.is_intact(NAME) or warehouse.is_intact(target))
    warehouse.storage.files.link_or_copy("orders", NAME, target)
    warehouse.storage.files.remove([NAME])
    warehouse.promise(lambda: warehouse.is_intact(target))


def a_second_name_of_a_killed_process(warehouse: Warehouse) -> None:
    a_published_file(warehouse)
    warehouse.promises.clear()
    target = f"_g1/{NAME}"
    with killed_before_fsync(files):
        warehouse.storage.files.link_or_copy("orders", NAME, target)
    warehouse.storage.files.link_or_copy("orders", NAME, target)
    warehouse.storage.files.remove([NAME])
    warehouse.promise(lambda: warehouse.is_intact(target))


def a_removed_file(warehouse: Warehouse) -> None:
    a_published_file(warehouse)
    warehouse.promises.clear()
    name = NAME.replace("hr=00", "hr=01")
    warehouse.storage.files.link_or_copy("orders", NAME, name)
    warehouse.storage.files.remove([NAME])
    warehouse.promise(lambda: not (warehouse.directory / NAME).exists())
    warehouse.storage.files.remove([name])
    warehouse.promise(lambda: not (warehouse.directory / "orders").exists())


def an_uncommitted_file_moved(warehouse: Warehouse) -> None:
    a_published_file(warehouse)
    warehouse.promises.clear()
    target = "orders/_foreign/0-1-a.avro"
    assert warehouse.storage.files.move_uncommitted(NAME, target)
    warehouse.promise(lambda: warehouse.is_intact(target))
    warehouse.promise(lambda: not (warehouse.directory / NAME).exists())


def a_table_schema(warehouse: Warehouse) -> None:
    name = "orders/_schema/current.avsc"
    path = warehouse.directory / name
    warehouse.storage.files.put(name, b"old")
    warehouse.promise(lambda: path.is_file() and path.read_bytes() in (b"old", CONTENT))
    warehouse.storage.files.put(name, CONTENT)
    warehouse.promise(lambda: warehouse.is_intact(name))


def a_table_schema_of_a_killed_writer(warehouse: Warehouse) -> None:
    with killed_before_fsync(files):
        warehouse.storage.files.put("orders/_schema/current.avsc", CONTENT)
    warehouse.storage.files.put("orders/_schema/current.avsc", CONTENT)
    warehouse.promise(lambda: warehouse.is_intact("orders/_schema/current.avsc"))


def table_schemas_of_many_topics(warehouse: Warehouse) -> None:
    names = [f"topic{number}/_schema/current.avsc" for number in range(disk.THREADS_MAX + 1)]
    warehouse.storage.files.put_all(dict.fromkeys(names, CONTENT))
    warehouse.promise(lambda: all(map(warehouse.is_intact, names)))


USES = (
    a_commit,
    a_commit_in_a_directory_of_a_killed_writer,
    a_commit_of_a_killed_writer,
    a_hint_that_is_replaced,
    a_staged_file,
    a_staged_file_of_another_run,
    a_published_file,
    a_file_of_a_killed_publisher,
    a_second_name,
    a_second_name_of_a_killed_process,
    a_removed_file,
    an_uncommitted_file_moved,
    a_table_schema,
    a_table_schema_of_a_killed_writer,
    table_schemas_of_many_topics,
)
Use = Callable[[Warehouse], None]


def record(root: Path, use: Use, without: str = "") -> Warehouse:
    root.mkdir()
    recorder = Recorder(root, without)
    with pytest.MonkeyPatch.context() as patch, recorder.recording():
        for module in (sink, disk):
            patch.setattr(module, "ThreadPoolExecutor", OneByOne)
        warehouse = Warehouse(root, recorder)
        use(warehouse)
    return warehouse


def broken(warehouse: Warehouse) -> str:
    """The first disk on which a promise does not hold, "" if all hold."""
    chance, survivors, seen = random.Random(SEED), Survivors(), set()
    for number, operation in enumerate(warehouse.recorder.operations):
        survivors.after(operation)
        made = [at for at, (since, _) in enumerate(warehouse.promises) if number >= since]
        for name, image in images(survivors, warehouse.recorder.top, chance, MIXES) if made else ():
            if (image.key, len(made)) in seen:
                continue
            seen.add((image.key, len(made)))
            shutil.rmtree(warehouse.root)
            warehouse.root.mkdir()
            image.write(warehouse.root)
            if not all(warehouse.promises[at][1]() for at in made):
                return f"after operation {number} ({name}, seed {SEED}): {operation}"
    return ""


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_promises_hold_after_a_loss_of_power(memory_path: Path, use: Use) -> None:
    warehouse = record(memory_path / "disk", use)
    assert warehouse.promises
    assert broken(warehouse) == ""


def test_every_omitted_fsync_breaks_a_promise(memory_path: Path) -> None:
    root = memory_path / "disk"
    by_site: dict[str, list[Use]] = {}
    for use in USES:
        for operation in record(root, use).recorder.operations:
            if isinstance(operation, Forced) and use not in by_site.setdefault(operation.site, []):
                by_site[operation.site].append(use)
        shutil.rmtree(root)
    unnoticed = []
    for site, uses in by_site.items():
        for use in uses:
            found = broken(record(root, use, without=site))
            shutil.rmtree(root)
            if found:
                break
        else:
            unnoticed.append(site)
    assert unnoticed == []
    assert {site.split()[0] for site in by_site} == set(functions_with_fsync()), "an fsync that no use reaches"


def functions_with_fsync() -> Iterator[str]:
    """The functions of the storage that fsync directly, by their names in sites."""
    for path in Path(local_storage.__code__.co_filename).parent.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            if {"fsync", "write_temporary"} & {found.id for found in ast.walk(function) if isinstance(found, ast.Name)}:
                yield f"{path.stem}.{function.name}"
