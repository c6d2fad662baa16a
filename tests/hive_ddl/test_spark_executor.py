"""The Spark executor with a fake metastore; component/spark tests a real one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from headrace.hive_ddl.errors import MetastoreUnavailable, StatementRefused
from headrace.hive_ddl.executors import spark
from headrace.hive_ddl.executors.jvm_errors import root_cause
from headrace.hive_ddl.executors.spark import SparkExecutor
from headrace.hive_ddl.names import PROBE_PREFIX
from headrace.hive_ddl.ops import CreateTable, PublishSchema, SetProperties
from headrace.hive_ddl.table import REVISION, TableState

METASTORE = "thrift://127.0.0.1:9083"
COMPARE_AND_SET_UNAVAILABLE = "compare_and_set_unavailable, simultaneous table changes may overwrite each other"
MODIFIED = (
    "The table has been modified. The parameter value for key 'headrace.revision' is '1'. The expected was value was"
)
CHANGE = SetProperties("headrace", "orders", "1-a", ((REVISION, "2-b"),), (), ())


def java_error(name: str, message: str) -> Py4JJavaError:
    """Returns an exception of a Java class with this simple name."""
    thrown = MagicMock()
    thrown.getClass().getSimpleName.return_value = name
    thrown.getMessage.return_value = message
    thrown.getCause.return_value = None
    thrown._target_id = "o1"
    return Py4JJavaError("An error occurred", thrown)


NOT_FOUND = java_error("NoSuchObjectException", "not there")
TIMED_OUT = java_error("TTransportException", "java.net.SocketTimeoutException: Read timed out")
DENIED = java_error("MetaException", "Permission denied: user=me, access=ALTER, table=_headrace_probe")


class JavaMap(dict[str, str]):
    put = dict.__setitem__
    remove = dict.pop


class FakeMetastore:
    """A metastore with a table `headrace.orders`.

    `refusals` maps call names to exceptions. `contexts` holds the context of each table change. `honours`: changes with
    an unmet condition are refused.
    """

    def __init__(self, *, honours: bool = False) -> None:
        self.honours = honours
        self.refusals: dict[str, Exception] = {}
        self.calls: list[str] = []
        self.contexts: dict[str, dict[str, str]] = {}
        self.parameters = JavaMap({REVISION: "1-a"})
        self.views: set[str] = set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            if name in self.refusals:
                raise self.refusals[name]
            return getattr(self, f"_{name}", lambda *_: None)(*arguments)

        if name.startswith("_"):
            raise AttributeError(name)
        return call

    def _getTable(self, database: str, name: str) -> Any:  # Java's names, also below
        if name != "orders":
            raise NOT_FOUND
        return SimpleNamespace(getParameters=lambda: self.parameters)

    def _createTable(self, table: Any) -> None:
        self.views.add("the probe")

    def _dropTable(self, *where: Any) -> None:
        self.views.clear()

    def _alter_table_with_environmentContext(self, database: str, name: str, table: Any, context: Any) -> None:
        given = dict(one.args for one in context.putToProperties.call_args_list)
        self.contexts["the probe" if name.startswith(PROBE_PREFIX) else name] = given
        if name.startswith(PROBE_PREFIX):
            table.getParameters().put.assert_called_with(REVISION, "2")  # an empty change might always succeed
        if self.honours and given.get(spark.CONDITION_VALUE) == "not the revision":
            raise java_error("MetaException", f"{MODIFIED} 'not the revision'")


@pytest.fixture
def metastore() -> FakeMetastore:
    return FakeMetastore()


@pytest.fixture
def executor(metastore: FakeMetastore, monkeypatch: pytest.MonkeyPatch) -> SparkExecutor:
    monkeypatch.setattr(spark, "new_client", lambda session: metastore)
    session = MagicMock()
    session._jvm.org.apache.hadoop.hive.metastore.api.EnvironmentContext = MagicMock
    session.sparkContext.getConf().get = lambda key: METASTORE if key.endswith("metastore.uris") else None
    return SparkExecutor(session)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def change(executor: SparkExecutor, metastore: FakeMetastore, times: int = 2) -> None:
    for _ in range(times):
        metastore.parameters[REVISION] = "1-a"
        executor.execute(CHANGE)
        assert metastore.contexts["orders"][spark.CONDITION_VALUE] == "1-a", "independent of the probe"
    assert metastore.calls.count("createTable") == 1, "one probe is enough"


def test_ignored_conditions_are_logged_once(
    executor: SparkExecutor, metastore: FakeMetastore, caplog: pytest.LogCaptureFixture
) -> None:
    change(executor, metastore)
    assert not executor.has_compare_and_set
    assert warnings(caplog) == [f"{COMPARE_AND_SET_UNAVAILABLE} reason=metastore_ignores_conditions"]
    assert metastore.views == set()


def test_compare_and_set_is_detected(
    executor: SparkExecutor, metastore: FakeMetastore, caplog: pytest.LogCaptureFixture
) -> None:
    metastore.honours = True
    change(executor, metastore)
    assert executor.has_compare_and_set
    assert warnings(caplog) == []
    assert metastore.views == set()


@pytest.mark.parametrize("call", ["createTable", "alter_table_with_environmentContext"])
@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (DENIED, "Permission denied: user=me, access=ALTER, table=_headrace_probe"),
        (java_error("InvalidOperationException", MODIFIED), MODIFIED),
        (java_error("MetaException", f"the view was renamed: {MODIFIED}"), f"the view was renamed: {MODIFIED}"),
        (Py4JError("Method alter_table([]) does not exist"), "Method alter_table([]) does not exist"),
    ],
)
def test_other_probe_errors_leave_compare_and_set_unavailable(
    executor: SparkExecutor,
    metastore: FakeMetastore,
    caplog: pytest.LogCaptureFixture,
    call: str,
    error: Exception,
    cause: str,
) -> None:
    metastore.honours = True
    metastore.refusals[call] = error
    for _ in range(2):
        assert not executor.has_compare_and_set
    assert warnings(caplog) == [f"{COMPARE_AND_SET_UNAVAILABLE} reason=probe_failed error={cause}"]
    assert metastore.views == set()
    metastore.refusals.clear()
    change(executor, metastore)
    assert len(warnings(caplog)) == 1


def test_probe_that_cannot_be_dropped_is_still_conclusive(
    executor: SparkExecutor, metastore: FakeMetastore, caplog: pytest.LogCaptureFixture
) -> None:
    metastore.honours = True
    metastore.refusals["dropTable"] = DENIED
    assert executor.has_compare_and_set
    (line,) = warnings(caplog)
    assert line.startswith(f"probe_view_not_dropped view=default.{PROBE_PREFIX}")
    assert "Permission denied" in line


@pytest.mark.parametrize("error", [TIMED_OUT, Py4JNetworkError("Answer from Java side is empty")])
@pytest.mark.parametrize("call", ["createTable", "alter_table_with_environmentContext", "dropTable"])
def test_broken_connection_during_probe_is_unavailable(
    executor: SparkExecutor, metastore: FakeMetastore, caplog: pytest.LogCaptureFixture, call: str, error: Exception
) -> None:
    metastore.refusals[call] = error
    with pytest.raises(MetastoreUnavailable):
        _ = executor.has_compare_and_set
    assert metastore.calls[-1] == call, "no further requests"
    assert warnings(caplog) == []


@pytest.mark.parametrize("error", [TIMED_OUT, Py4JNetworkError("Answer from Java side is empty")])
@pytest.mark.parametrize(
    ("call", "action"),
    [
        ("getDatabase", lambda executor: executor.ensure_database("headrace")),
        ("getTable", lambda executor: executor.table("headrace", "orders")),
        ("listPartitionNames", lambda executor: executor.partitions("headrace", "orders")),
        ("createTable", lambda executor: executor.execute(CreateTable(TableState("headrace", "new", "", (), (), {})))),
        ("alter_table_with_environmentContext", lambda executor: executor.execute(CHANGE)),
        (
            "getFields",
            lambda executor: executor._visible_columns({"dbName": "h", "tableName": "o"}, {"avro.schema.url": "x"}, ()),
        ),
    ],
)
def test_broken_connection_is_not_used_again(
    executor: SparkExecutor,
    metastore: FakeMetastore,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    action: Callable[[SparkExecutor], object],
    error: Exception,
) -> None:
    """Each topic would wait for a timeout, and then read the response to the previous action."""
    monkeypatch.setattr(executor, "_has_compare_and_set", True)
    metastore.refusals[call] = error
    waits = 0
    for _ in range(3):
        with pytest.raises(MetastoreUnavailable) as caught, executor._failures("columns"):
            action(executor)
        waits += metastore.calls.count(call)
        assert metastore.calls[-1:] in ([call], [])
        metastore.calls.clear()
        assert caught.value.metastore == METASTORE
    assert waits == 1


def test_error_masks_the_password_in_the_connection_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "new_client", MagicMock(side_effect=TIMED_OUT))
    url = "jdbc:postgresql://db/metastore?user=hive&password=s3cr3t"
    session = MagicMock()
    session.sparkContext.getConf().get = lambda key: url if key.endswith("ConnectionURL") else None
    with pytest.raises(MetastoreUnavailable) as caught:
        SparkExecutor(session)
    assert caught.value.metastore == "jdbc:postgresql://db/metastore?user=hive&password=***"


def test_reasons_have_no_stack_trace_of_the_server() -> None:
    """The NameNode's refusal reaches the metastore's client as one message with a frame in each line."""
    frames = "".join(f"\n\tat org.apache.hadoop.hdfs.Some$1.<init>(Some.java:{line})" for line in range(40))
    message = f"Got exception: Permission denied: user=hive, access=WRITE{frames}\nthe last line, look at it (twice)\n"
    reason = "Got exception: Permission denied: user=hive, access=WRITE the last line, look at it (twice)"
    assert root_cause(java_error("MetaException", message)) == reason


def test_refusal_does_not_break_the_connection(executor: SparkExecutor, metastore: FakeMetastore) -> None:
    for error in (DENIED, Py4JError("Method getTable([]) does not exist")):
        metastore.refusals["getTable"] = error
        with pytest.raises(StatementRefused):
            executor.table("headrace", "orders")
    assert metastore.calls == ["getTable", "getTable"]


def test_file_system_failure_does_not_break_the_connection(
    executor: SparkExecutor, metastore: FakeMetastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema file is written through Hadoop, whose exceptions have classes of the same names."""
    op = PublishSchema("hdfs://nn/w/orders/_schema/x.avsc", "{}")
    path = MagicMock()
    path.getFileSystem.side_effect = java_error("ConnectException", "Connection refused")
    monkeypatch.setattr(executor._jvm.org.apache.hadoop.fs, "Path", lambda *_: path)
    with pytest.raises(StatementRefused) as refused:
        executor.execute(op)
    assert refused.value.subject.endswith(op.url)
    assert refused.value.reason == "Connection refused"
    executor.ensure_database("headrace")
    path.getFileSystem.side_effect = Py4JNetworkError("Answer from Java side is empty")
    with pytest.raises(MetastoreUnavailable, match="JVM"):
        executor.execute(op)
