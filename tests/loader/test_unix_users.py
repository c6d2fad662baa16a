"""The permissions on local files in docs/permissions.md suffice for the Unix users of loads and readers, and each is
necessary."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.loader.run import run_load
from support.loader.loader_fakes import ORDER_V1, World

LOADER_ID, READER_ID, GROUP_ID, OTHER_GROUP_ID = 54_321, 54_322, 54_323, 54_324
"""Ids of users and groups that need no name."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acting as other Unix users requires root")


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that other users may enter, unlike pytest's."""
    path = Path(tempfile.mkdtemp(prefix="headrace-users-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def world(directory: Path) -> World:
    """A topic whose warehouse belongs to root and a group, and a process that has imported all modules of a load."""
    imported = World(directory / "imported")
    imported.registry.register("orders-value", 1, ORDER_V1)
    imported.topic("orders", [1])
    run_load(imported.ports(), imported.settings)
    world = World(directory / "data")
    world.registry.register("orders-value", 1, ORDER_V1)
    world.topic("orders", [1] * 10)
    for path in (directory / "data", world.warehouse):
        path.mkdir(exist_ok=True)
        os.chown(path, 0, GROUP_ID)
        path.chmod(0o770)
    return world


def run_as(user_id: int, group_id: int, action: Callable[[], object]) -> str:
    """Runs an action in a forked process of another user, and returns its error, "" for none."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setgid(group_id)
            os.setuid(user_id)
            os.umask(0o027)
            action()
        except BaseException as error:
            os.write(write_end, f"{type(error).__name__}: {error}"[:2000].encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as output:
        error = output.read()
    os.waitpid(pid, 0)
    return error


def load(world: World) -> Callable[[], object]:
    return lambda: run_load(world.ports(), world.settings)


def read(world: World) -> list[bytes]:
    files = [path for path in (world.warehouse / "orders").rglob("dt=*/hr=*/*") if path.is_file()]
    assert files, "no files"
    return [path.read_bytes() for path in files]


def test_group_of_the_warehouse_may_load_and_query(world: World) -> None:
    assert run_as(LOADER_ID, GROUP_ID, load(world)) == ""
    assert {path.stat().st_uid for path in world.warehouse.rglob("*")} == {LOADER_ID}
    assert run_as(READER_ID, GROUP_ID, lambda: read(world)) == ""
    assert "PermissionError" in run_as(READER_ID, OTHER_GROUP_ID, lambda: read(world))
    assert len(read(world)) == 1


@pytest.mark.parametrize("mode", [0o750, 0o760])
def test_load_must_write_and_enter_the_warehouse(world: World, mode: int) -> None:
    world.warehouse.chmod(mode)
    refused = run_as(LOADER_ID, GROUP_ID, load(world))
    assert str(world.warehouse) in refused
    assert "Permission denied" in refused
    world.warehouse.chmod(0o770)
    assert run_as(LOADER_ID, GROUP_ID, load(world)) == ""
