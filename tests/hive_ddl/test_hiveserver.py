"""What is read off the answers of servers, and what is said of their failures; component/hive asks the servers."""

from __future__ import annotations

import pytest
from pyhive import exc
from TCLIService.ttypes import TExecuteStatementResp, TStatus, TStatusCode
from thrift.transport.TTransport import TTransportException

from headrace.hive_ddl.executors.hiveserver import _Described, _reason, _why_lost
from headrace.hive_ddl.table import Column

OF_HIVE = [
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
OF_SPARK = [
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


@pytest.mark.parametrize("rows", [OF_HIVE, OF_SPARK], ids=["HiveServer2", "Spark"])
def test_columns_partitions_and_place_are_read_off_either_answer(rows: list[tuple[str | None, ...]]) -> None:
    described = _Described(rows)
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
    assert _Described(rows).partition_columns == ()
    assert _Described(rows).facts == {"Location": "x"}


def test_what_a_server_refuses_is_said_in_one_line_without_its_stack() -> None:
    message = "Error running query: [PARSE]\norg.apache.X: bad\n  word\n\tat a.b.C(D.java:1)\n\tat e.f"
    status = TStatus(TStatusCode.ERROR_STATUS, errorMessage=message)
    assert _reason(exc.OperationalError(TExecuteStatementResp(status))) == (
        "Error running query: [PARSE] org.apache.X: bad word"
    )
    assert _reason(exc.ProgrammingError("no result set")) == "no result set"
    assert _reason(exc.OperationalError()) == "no reason given"
    assert len(_reason(exc.OperationalError("x" * 10_000))) == 500


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError("timed out"), "it does not answer; is hive.server_auth what the server has"),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused; start it there or set hive.executor"),
        (TTransportException(3, "read timeout"), "it does not answer; is hive.server_auth what the server has"),
        (
            TTransportException(1, "Bad status: 3 (b'Error\nvalidating')"),
            "Bad status: 3 (b'Error validating'); see hive.",
        ),
        (EOFError(), "EOFError; see hive.server_auth"),
    ],
    ids=["silent", "refused", "timeout", "login", "closed"],
)
def test_why_a_connection_was_lost_comes_with_what_to_look_at(error: Exception, said: str) -> None:
    assert _why_lost(error).startswith(said)
