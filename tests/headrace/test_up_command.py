"""The output of `headrace up` when all parts are ready."""

from __future__ import annotations

from dataclasses import replace

from headrace.cli.up import ready_lines
from headrace.settings.addresses import LiveAddresses

ADDRESSES = LiveAddresses(
    pid=1,
    started_at="2026-01-31T07:20:04+00:00",
    registry="http://127.0.0.1:8081",
    broker="",
    metastore="thrift://127.0.0.1:9083",
    sql="127.0.0.1:10000",
    sql_socket="/data/sql.sock",
    warehouse="/data/warehouse",
)


def test_programs_get_one_line() -> None:
    assert ready_lines(ADDRESSES, "shop", on_terminal=False) == (
        "ready registry=http://127.0.0.1:8081 metastore=thrift://127.0.0.1:9083 sql=127.0.0.1:10000 "
        "warehouse=/data/warehouse",
    )


def test_passwords_in_addresses_are_masked() -> None:
    addresses = replace(ADDRESSES, registry="http://shop:opensesame@registry:8081")
    for on_terminal in (False, True):
        assert "opensesame" not in "".join(ready_lines(addresses, "shop", on_terminal=on_terminal))


def test_text_has_an_address_on_each_line_and_commands_to_try() -> None:
    _, *lines = ready_lines(ADDRESSES, "shop", on_terminal=True)
    assert lines == [
        "  registry   http://127.0.0.1:8081",
        "  metastore  thrift://127.0.0.1:9083",
        "  sql        127.0.0.1:10000",
        "  warehouse  /data/warehouse",
        "  jdbc       jdbc:hive2://127.0.0.1:10000/shop",
        '  try        headrace status; headrace load; headrace sql "SHOW TABLES"',
    ]
