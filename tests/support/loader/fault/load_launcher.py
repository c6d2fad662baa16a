"""`headrace` with stop points: `python load_launcher.py load …` behaves like `python -m headrace load …`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from stop_points import wrap  # noqa: E402

import headrace.loader.apply.audit  # noqa: E402
import headrace.loader.apply.engine  # noqa: E402
import headrace.loader.apply.files  # noqa: E402
import headrace.loader.apply.group_offsets  # noqa: E402
import headrace.loader.apply.partitions  # noqa: E402
import headrace.loader.apply.schema  # noqa: E402
import headrace.loader.commit.cleaning  # noqa: E402
import headrace.loader.commit.commit_log  # noqa: E402
import headrace.loader.run  # noqa: E402
import headrace.pipeline.load  # noqa: E402
from headrace.cli import main  # noqa: E402
from headrace.hive_ddl.executors.spark import SparkExecutor  # noqa: E402
from headrace.hive_ddl.ops import AddPartitions, CreateTable, DropTable, RenameTable, SetProperties  # noqa: E402
from headrace.loader.storage.hadoop.jvm import HdfsFileSystem, S3aFileSystem  # noqa: E402
from headrace.loader.storage.hadoop.staging import HadoopStaging  # noqa: E402
from headrace.loader.storage.local.staging import LocalStaging  # noqa: E402


def is_commit(source: Any, target: Any) -> bool:
    return Path(target).parent.name == "log"


def is_published(source: Any, target: Any) -> bool:
    return str(target).endswith(".avro")


def is_remote_commit(_: Any, path: str, *__: Any) -> bool:
    return "/_headrace/log/" in path


def is_remotely_published(_: Any, source: str, target: str) -> bool:
    return target.endswith(".avro")


def is_staged(path: Path, **_: Any) -> bool:
    return "staging" in path.parts and path.suffix == ".avro"


def add_points() -> None:
    wrap(headrace.loader.run, "discover", "plan:discover")
    wrap(headrace.loader.run, "make_plan", "plan:schemas")
    wrap(headrace.pipeline.load.SparkConnection, "run_units", "read:job")
    wrap(headrace.pipeline.load.SparkConnection, "run_merges", "rewrite:job")
    wrap(LocalStaging, "persist", "write:check")
    wrap(headrace.loader.run, "reconcile", "commit:reconcile")
    wrap(os, "link", "commit:link", is_commit)
    wrap(headrace.loader.commit.commit_log.CommitLog, "_write_hint", "commit:hint")
    for applier in (
        headrace.loader.apply.schema.SchemaApplier,
        headrace.loader.apply.files.FilesApplier,
        headrace.loader.apply.partitions.PartitionsApplier,
    ):
        wrap(applier, "apply", f"apply:{applier.__module__.rpartition('.')[2]}")
    wrap(headrace.loader.apply.audit.AuditApplier, "_apply", "apply:audit")  # once for each topic
    wrap(headrace.loader.apply.group_offsets.GroupOffsetsApplier, "apply_topics", "apply:group_offsets")
    wrap(SparkExecutor, "execute", "apply:schema:table", lambda _, op: isinstance(op, CreateTable | SetProperties))
    wrap(SparkExecutor, "execute", "apply:partitions:add", lambda _, op: isinstance(op, AddPartitions))
    wrap(SparkExecutor, "execute", "apply:table:drop", lambda _, op: isinstance(op, DropTable))
    wrap(SparkExecutor, "execute", "apply:table:rename", lambda _, op: isinstance(op, RenameTable))
    wrap(os, "link", "apply:files:link", is_published)
    wrap(Path, "unlink", "apply:files:unlink", is_staged)
    wrap(LocalStaging, "drop", "apply:staging")
    wrap(HadoopStaging, "persist", "write:check")
    wrap(HadoopStaging, "written_files", "write:written")
    for remote in (HdfsFileSystem, S3aFileSystem):
        wrap(remote, "put_if_absent", "commit:link", is_remote_commit)
        wrap(remote, "move", "apply:files:link", is_remotely_published)
    wrap(headrace.loader.apply.engine._ApplierPass, "save", "apply:cursors")
    wrap(headrace.loader.run, "clean", "clean")


def let_workers_stop() -> None:
    """Makes the stop points effective in Spark's Python workers too. Spark starts them itself, so they find the stop
    points through `PYTHONPATH`."""
    paths = [str(HERE / "worker_site"), str(HERE), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)


if __name__ == "__main__":
    let_workers_stop()
    add_points()
    sys.exit(main(sys.argv[1:]))
