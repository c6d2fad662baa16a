"""Parsing of server results and failure reasons; component/hive tests real servers."""

from __future__ import annotations

import pytest
from pyhive import exc
from TCLIService.ttypes import TExecuteStatementResp, TStatus, TStatusCode
from thrift.transport.TTransport import TTransportException

from headrace.hive_ddl.executors.hiveserver import _describe_connection_failure, _reason, _TableDescription
from headrace.hive_ddl.table import Column

HIVE_ROWS = [
    ("id", "int", ""),
    ("location", "string", "of a field"),
    ("", None, None),
    ("# Partition Information", None, None),
    ("# col_name", "data_type", "comment"),
    ("dt", "string", ""),
    ("hr", "string", ""),
    ("", None, None),
    ("# Detailed Table Information", None, None),
    ("Database:           ", "h                   ", None),
    ("Location:           ", "file:/w/a b", None),
    ("Table Parameters:", None, None),
    ("", "headrace.topic      ", "orders              "),
    ("", None, None),
    ("# Storage Information", None, None),
    ("Location:           ", "elsewhere", None),
]
SPARK_ROWS = [
    ("id", "int", None),
    ("location", "string", "of a field"),
    ("dt", "string", None),
    ("hr", "string", None),
    ("# Partition Information", "", ""),
    ("# col_name", "data_type", "comment"),
    ("dt", "string", None),
    ("hr", "string", None),
    ("", "", ""),
    ("# Detailed Table Information", "", ""),
    ("Catalog", "spark_catalog", ""),
    ("Location", "file:/w/a b", ""),
]


@pytest.mark.parametrize("rows", [HIVE_ROWS, SPARK_ROWS], ids=["HiveServer2", "Spark"])
def test_table_description_of_hive_and_spark(rows: list[tuple[str | None, ...]]) -> None:
    described = _TableDescription(rows)
    assert described.columns == (Column("id", "int"), Column("location", "string", "of a field"))
    assert described.partition_columns == ("dt", "hr")
    assert described.facts["Location"] == "file:/w/a b"


def test_a_table_without_partitions() -> None:
    rows = [
        ("id", "int", ""),
        ("", None, None),
        ("# Detailed Table Information", None, None),
        ("Location: ", "x", None),
    ]
    assert _TableDescription(rows).partition_columns == ()
    assert _TableDescription(rows).facts == {"Location": "x"}


def test_reason_is_one_line_without_stack_trace() -> None:
    message = "Error running query: [PARSE]\norg.apache.X: bad\n  word\n\tat a.b.C(D.java:1)\n\tat e.f"
    status = TStatus(TStatusCode.ERROR_STATUS, errorMessage=message)
    assert _reason(exc.OperationalError(TExecuteStatementResp(status))) == (
        "Error running query: [PARSE] org.apache.X: bad word"
    )
    assert _reason(exc.ProgrammingError("no result set")) == "no result set"
    assert _reason(exc.OperationalError())
    assert len(_reason(exc.OperationalError("x" * 10_000))) == 500


@pytest.mark.parametrize(
    ("error", "cause", "setting"),
    [
        (TimeoutError("timed out"), "", "hive.server_auth"),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused", "hive.executor"),
        (TTransportException(3, "read timeout"), "", "hive.server_auth"),
        (
            TTransportException(1, "Bad status: 3 (b'Error\nvalidating')"),
            "Bad status: 3 (b'Error validating')",
            "hive.",
        ),
        (EOFError(), "EOFError", "hive.server_auth"),
    ],
    ids=["silent", "refused", "timeout", "login", "closed"],
)
def test_reason_of_a_lost_connection_has_its_cause_and_names_a_setting(
    error: Exception, cause: str, setting: str
) -> None:
    reason = _describe_connection_failure(error)
    assert reason.startswith(cause)
    assert setting in reason
