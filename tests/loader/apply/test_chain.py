"""The order of the appliers: each finds the results that it depends on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from headrace.audit.storage.store import AuditStore
from headrace.hive_ddl.ops import AddPartitions, Op
from headrace.loader.apply.base import Step
from headrace.loader.apply.group_offsets import GroupOffsetsApplier
from headrace.loader.run import run_load
from headrace.loader.storage.local.files import LocalFiles
from headrace.loader.storage.protocols import Publication
from support.loader.loader_fakes import ORDER_V1, ORDER_V2, FakeHive, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.registry.register("orders-value", 1, ORDER_V1)
    made.topic("orders", [1, 1], [1])
    run_load(made.ports(), made.settings)
    made.registry.register("orders-value", 2, ORDER_V2)
    made.cluster.topics["orders"].logs[0].append(2)
    return made


def test_each_applier_runs_after_those_it_depends_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are published after their table can read them, partitions are added after their files, and counts and group
    offsets are written when queries see the rows."""
    applied: list[str] = []
    publish, execute, add_committed = LocalFiles.publish, FakeHive.execute, AuditStore.add_committed
    commit = GroupOffsetsApplier.apply_topics

    def published(self: LocalFiles, files: Iterable[Publication]) -> object:
        assert "note" in world.hive.tables["headrace", "orders"].properties["avro.schema.literal"]
        applied.append("files")
        return publish(self, files)

    def executed(self: FakeHive, op: Op) -> None:
        if isinstance(op, AddPartitions):
            for one in op.partitions:
                assert list(Path(one.location.removeprefix("file://")).glob("*.avro")), one
            applied.append("partitions")
        execute(self, op)

    def counted(self: AuditStore, *arguments: object) -> object:
        assert applied[-1] == "partitions"
        applied.append("audit")
        return add_committed(self, *arguments)  # type: ignore[arg-type]  # passed through

    def committed(self: GroupOffsetsApplier, steps: Sequence[Step]) -> Mapping[str, str]:
        assert applied[-1] == "audit"
        applied.append("offsets")
        return commit(self, steps)

    monkeypatch.setattr(LocalFiles, "publish", published)
    monkeypatch.setattr(FakeHive, "execute", executed)
    monkeypatch.setattr(AuditStore, "add_committed", counted)
    monkeypatch.setattr(GroupOffsetsApplier, "apply_topics", committed)
    world.hive.parts.clear()  # so that there are partitions to add
    run_load(world.ports(), world.settings)
    assert applied == ["files", "partitions", "audit", "offsets"]
