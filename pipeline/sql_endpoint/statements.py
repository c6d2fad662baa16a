"""Decides whether a statement is permitted, from the plan to which Spark's parser turns it. No I/O.

Everything is denied that `permitted` does not list: each class in the plan, in nested queries, expressions and EXPLAIN
too, and each function. A statement that a new release of Spark adds is therefore denied until it is listed.

A user with `sql-write` may write tables and views inside the warehouse, except in the databases of the loader. The
statement must name the database of its target, because the default database depends on the session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.pipeline.sql_endpoint.permitted import (
    FUNCTIONS,
    LEAVES,
    READ_CLASSES,
    READ_STATEMENTS,
    SETTINGS,
    TABLE_FORMATS,
    WRITE_CLASSES,
    WRITE_STATEMENTS,
)
from headrace.registry.access.permissions import SqlPermission

_NAME: Final = re.compile(r"[^/\\:]{1,255}")
_NO_OPTIONS: Final = re.compile(r"\{(__required_write_privileges__=[A-Z,]+)?\}")
"""The options of a table as text; Spark's parser adds the one to the targets of INSERT."""
_TARGET_NAME: Final = re.compile(r"\w{1,128}", re.ASCII)
_CATALOG: Final = "spark_catalog"


@dataclass(frozen=True, slots=True)
class JavaValue:
    """A Scala object of a plan: the name of its class, and the values that were passed to its constructor."""

    class_name: str
    parts: tuple[PlanPart, ...]

    @property
    def name(self) -> str:
        """The class name without its package."""
        return self.class_name.rpartition(".")[2]

    def texts(self) -> tuple[str, ...]:
        """The texts among the parts, such as the parts of a table's name."""
        return tuple(part for part in self.parts if isinstance(part, str))


PlanPart = JavaValue | str | int | float | bool | None


class StatementDenied(Exception):
    """The reason why a statement is not permitted. `needs` is the permission that would allow it, or None if no grant
    does."""

    def __init__(self, reason: str, needs: SqlPermission | None = None) -> None:
        super().__init__(reason)
        self.needs = needs


def is_leaf(class_name: str) -> bool:
    """Returns whether the parts of a class need not be read: it has neither tables nor functions."""
    return class_name in LEAVES or class_name.startswith("org.apache.spark.sql.types.")


def statement_kind(plan: PlanPart) -> str:
    """Returns the name of a statement's class for the audit log, such as `Project` for a query."""
    return plan.name if isinstance(plan, JavaValue) else "unknown"


def check_plan(plan: PlanPart, permission: SqlPermission | None, loader_databases: frozenset[str]) -> None:
    """Checks the plan of a statement.

    Args:
        permission: of the user; None denies everything.
        loader_databases: the databases that only the loader may write, in lower case.

    Raises:
        StatementDenied: the statement is not permitted.
    """
    if permission is None:
        raise StatementDenied("the user has no permission to read tables", SqlPermission.READ)
    if not isinstance(plan, JavaValue):
        raise StatementDenied("the statement is not permitted")
    writes = [value for value in _values(plan) if value.class_name in WRITE_STATEMENTS]
    if writes and permission < SqlPermission.WRITE:
        raise StatementDenied(f"the statement writes ({writes[0].name})", SqlPermission.WRITE)
    for value in _values(plan):
        _check_class(value, can_write=bool(writes))
        check = _CHECKS.get(value.name)
        if check is not None:
            check(value)
    for value in writes:
        _check_target(value, loader_databases)


def _values(plan: JavaValue) -> Iterator[JavaValue]:
    pending = [plan]
    while pending:
        value = pending.pop()
        yield value
        pending.extend(part for part in reversed(value.parts) if isinstance(part, JavaValue))


def _check_class(value: JavaValue, *, can_write: bool) -> None:
    if value.class_name.startswith("scala.") or value.class_name == "byte[]":
        return
    if is_leaf(value.class_name) or value.class_name in READ_CLASSES or value.class_name in READ_STATEMENTS:
        return
    if can_write and (value.class_name in WRITE_CLASSES or value.class_name in WRITE_STATEMENTS):
        return
    raise StatementDenied(
        f"the SQL endpoint does not permit {value.name}, which is in this statement; use queries, SHOW, DESCRIBE, "
        "EXPLAIN and USE"
    )


def _check_table_name(value: JavaValue) -> str:
    """A table by name: a name with slashes would be a path of files. Returns the name."""
    names = value.parts[0]
    texts = names.texts() if isinstance(names, JavaValue) else ()
    name = ".".join(texts)[:100]
    if not texts or not all(_NAME.fullmatch(text) for text in texts):
        raise StatementDenied(f"{name} is a path, not a table; query tables by name only")
    return name


def _check_relation(value: JavaValue) -> None:
    """A table in a query. Options could name another path."""
    name = _check_table_name(value)
    _, options, is_streaming = value.parts
    texts = options.texts() if isinstance(options, JavaValue) else ()
    if len(texts) != 1 or not _NO_OPTIONS.fullmatch(texts[0]) or is_streaming is not False:
        raise StatementDenied(f"options of the table {name} are not permitted; remove them")


def _check_function(value: JavaValue) -> None:
    names = value.parts[0]
    texts = names.texts() if isinstance(names, JavaValue) else (str(names),)
    if len(texts) != 1 or texts[0].lower() not in FUNCTIONS:
        raise StatementDenied(f"the SQL endpoint does not permit the function {'.'.join(texts)[:100]}")


def _check_setting(value: JavaValue) -> None:
    """SET: only settings of the list, one at a time; a list of all settings could contain credentials."""
    (pair,) = value.parts
    entry = pair.parts[0] if isinstance(pair, JavaValue) and pair.parts else None
    key = entry.texts()[0] if isinstance(entry, JavaValue) and entry.texts() else ""
    if key not in SETTINGS:
        raise StatementDenied(f"the SQL endpoint does not permit SET {key[:100]}; permitted: {', '.join(SETTINGS)}")


def _check_new_table(value: JavaValue) -> None:
    """A new table: in the warehouse, in a format that is part of Spark, without options and properties."""
    fields = dict(zip(_SPEC_FIELDS, value.parts, strict=False))
    provider = _optional(fields.get("provider"))
    if provider is not None and str(provider).lower() not in TABLE_FORMATS:
        raise StatementDenied(f"the format {str(provider)[:100]} is not permitted; use {', '.join(TABLE_FORMATS)}")
    for name in ("properties", "options", "location", "serde"):
        if not _is_empty(fields.get(name)):
            raise StatementDenied(f"a new table may not have {name}; remove that clause")
    if fields.get("external") is not False:
        raise StatementDenied("external tables are not permitted; remove EXTERNAL")


_SPEC_FIELDS: Final = ("properties", "provider", "options", "location", "comment", "collation", "serde", "external")
"""The first fields of Spark's UnresolvedTableSpec, in order."""


def _check_new_database(value: JavaValue) -> None:
    properties = value.parts[2]
    pairs = properties.parts if isinstance(properties, JavaValue) else (None,)
    if any(not isinstance(pair, JavaValue) or pair.parts[:1] != ("comment",) for pair in pairs):
        raise StatementDenied("a new database may have a comment only; remove LOCATION and DBPROPERTIES")


def _optional(value: PlanPart) -> PlanPart:
    """The content of a Scala option, or None."""
    return value.parts[0] if isinstance(value, JavaValue) and value.parts else None


def _is_empty(value: PlanPart) -> bool:
    """Whether an option or collection, or a list of options, has no content."""
    return isinstance(value, JavaValue) and all(_is_empty(part) for part in value.parts)


_CHECKS: Final[Mapping[str, Callable[[JavaValue], object]]] = {
    "UnresolvedRelation": _check_relation,
    "UnresolvedTableOrView": _check_table_name,
    "UnresolvedTable": _check_table_name,
    "UnresolvedView": _check_table_name,
    "UnresolvedFunction": _check_function,
    "UnresolvedGenerator": _check_function,
    "UnresolvedTableValuedFunction": _check_function,
    "SetCommand": _check_setting,
    "UnresolvedTableSpec": _check_new_table,
    "CreateNamespace": _check_new_database,
}
"""Checks of the fields of single classes."""


def _check_target(value: JavaValue, loader_databases: frozenset[str]) -> None:
    """The table, view or database that a statement writes: named with its database, which is not one of the loader."""
    target = value.parts[0]
    names = target.parts[0] if isinstance(target, JavaValue) and target.parts else None
    texts = list(names.texts()) if isinstance(names, JavaValue) else []
    if texts[:1] == [_CATALOG]:
        del texts[0]
    is_database = value.name in ("CreateNamespace", "DropNamespace")
    if len(texts) != (1 if is_database else 2) or not all(_TARGET_NAME.fullmatch(text) for text in texts):
        raise StatementDenied(f"the name of the target of {value.name} needs its database: DATABASE.NAME")
    if texts[0].lower() in loader_databases:
        raise StatementDenied(f"only loads write the database {texts[0]}; write to another database")
