"""The prompt's short commands and completion."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.cli.sql_prompt import NAMES_TTL_S, Completion, short_command

TABLES = {"flights": ("carrier", "dep_delay", "dt"), "planes": ("tailnum", "dt")}


@pytest.mark.parametrize(
    ("typed", "statement"),
    [
        ("\\dt", "SHOW TABLES"),
        ("\\d;", "SHOW TABLES"),
        ("  \\d flights ;", "DESCRIBE flights"),
        ("\\d headrace.flights", "DESCRIBE headrace.flights"),
        ("SELECT 1;", None),
        ("", None),
    ],
)
def test_short_command_is_a_statement(typed: str, statement: str | None) -> None:
    assert short_command(typed) == statement


@pytest.mark.parametrize("typed", ["\\x", "\\d a b", "\\d a;DROP TABLE b", "\\"])
def test_unknown_short_command_is_an_error(typed: str) -> None:
    with pytest.raises(ValueError, match="is not a command"):
        short_command(typed)


class Tables:
    """Runs the statements of a completion on `TABLES`."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.now_s = 0.0

    def run(self, statement: str) -> Sequence[Sequence[str | None]]:
        self.statements.append(statement)
        if statement == "SHOW TABLES":
            return [("headrace", name, "false") for name in TABLES]
        columns = [(name, "string", None) for name in TABLES[statement.removeprefix("DESCRIBE ")]]
        return [*columns, ("# Partition Information", "", ""), ("dt", "string", None)]


def test_columns_of_named_tables_tables_and_words_are_completed() -> None:
    tables = Tables()
    completion = Completion(tables.run, lambda: tables.now_s)
    assert completion.candidates("SELECT * FROM fl", "fl") == ["flights"]
    assert completion.candidates("SELECT d FROM flights", "d") == ["dep_delay", "dt", "distinct", "describe"]
    assert completion.candidates("select tail from planes", "tail") == ["tailnum"]
    assert completion.candidates("SEL", "SEL") == ["SELECT"]
    assert completion.candidates("SELECT xyz", "xyz") == []
    assert tables.statements == ["SHOW TABLES", "DESCRIBE flights", "DESCRIBE planes"], "cached"
    tables.now_s += NAMES_TTL_S + 1
    completion.candidates("", "x")
    assert tables.statements[3:] == ["SHOW TABLES"]


def test_without_tables_the_words_are_completed() -> None:
    assert Completion(lambda statement: ()).candidates("sel", "sel") == ["select"]
