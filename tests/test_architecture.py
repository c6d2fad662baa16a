"""What each room may import. The table is the rule; the test reads every import and keeps it true."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

ROOMS = (
    "avro_schema",
    "kafka_wire",
    "compat",
    "hive_ddl",
    "registry",
    "broker",
    "loader",
    "audit",
    "pipeline",
    "headrace",
)

# Rooms, or modules of rooms, that a room may import besides itself and the standard library.
MAY_IMPORT_ROOMS: dict[str, tuple[str, ...]] = {
    "avro_schema": (),
    "compat": ("avro_schema", "hive_ddl.types", "hive_ddl.names"),
    "hive_ddl": ("avro_schema",),
    "registry": ("avro_schema", "compat"),
    "kafka_wire": (),
    "broker": ("kafka_wire",),
    "loader": ("avro_schema", "kafka_wire", "registry.client", "registry.errors", "hive_ddl", "audit"),
    "audit": (),
    "pipeline": ROOMS,
    "headrace": ROOMS,
}

# Libraries that a room may import anywhere, and those that only the named modules of it may.
MAY_IMPORT_LIBRARIES: dict[str, tuple[str, ...]] = {
    "avro_schema": (),
    "compat": (),
    "hive_ddl": (),
    "registry": (
        "flask",
        "werkzeug",
        "sqlalchemy",
        "alembic",
        "marshmallow",
        "psycopg",
        "granian",
        "prometheus_client",
    ),
    "kafka_wire": ("kafka", "crc32c", "cramjam", "lz4", "zstandard"),
    "broker": ("kafka", "crc32c"),
    "loader": ("fastavro", "crc32c", "cramjam"),
    "audit": (),
    "pipeline": ("kafka", "fastavro", "pyspark", "py4j", "pyhive"),
    "headrace": (),
}
EDGE_LIBRARIES: dict[str, tuple[str, ...]] = {
    "loader.job": ("pyspark", "py4j"),
    "hive_ddl.executors": ("pyspark", "py4j"),
    "audit.store": ("kafka", "fastavro"),
    "audit.ingest": ("kafka", "fastavro"),
    "audit.emit": ("kafka", "fastavro"),
}

# The bare install: importing these must not need any library.
BARE = (
    "avro_schema",
    "compat",
    "checking",
    "cli.compat",
    "cli.schema",
    "cli.command",
    "cli",
    "settings",
    "registry.client",
)


PACKAGES = ROOT / ".make" / "packages"
"""The rooms as the package that they are when installed; `make setup` leaves it."""


def modules() -> list[tuple[str, Path]]:
    """Every module of every room by its name below `headrace`, which is the name of its folder in the checkout."""
    found = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def below_headrace(name: str) -> str:
    """What the name of a first-party module is in the tables above; other names come back as they are."""
    rest = name.removeprefix("headrace.")
    return rest if rest != name and rest.partition(".")[0] in ROOMS else name


def imported_names(path: Path) -> set[str]:
    """Absolute dotted names that a module imports, also inside functions, but not for type checking only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in _runtime_nodes(tree):
        if isinstance(node, ast.Import):
            names.update(below_headrace(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute here"
            names.update(below_headrace(f"{node.module}.{alias.name}") for alias in node.names)
    return names


def _runtime_nodes(tree: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            stack.extend(node.orelse)
            continue
        found.append(node)
        stack.extend(ast.iter_child_nodes(node))
    return found


def is_below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda value: value if isinstance(value, str) else "")
def test_imports_keep_the_table(module: str, path: Path) -> None:
    room = module.partition(".")[0]
    libraries = MAY_IMPORT_LIBRARIES[room] + tuple(
        library for edge, extra in EDGE_LIBRARIES.items() if is_below(module, edge) for library in extra
    )
    wrong = []
    for name in imported_names(path):
        top = name.partition(".")[0]
        if top == room or top in sys.stdlib_module_names or top == "__future__":
            continue
        if top in ROOMS:
            allowed = any(is_below(name, prefix) for prefix in MAY_IMPORT_ROOMS[room])
        else:
            allowed = top in libraries
        if not allowed:
            wrong.append(name)
    assert not wrong, f"{module} imports {', '.join(sorted(wrong))}"


def test_only_the_front_door_wires_rooms() -> None:
    for module, path in modules():
        room = module.partition(".")[0]
        if room in ("pipeline", "headrace"):
            continue
        names = imported_names(path)
        assert not [n for n in names if is_below(n, "pipeline") or is_below(n, "headrace")], module


def test_alembic_folder_does_not_shadow_the_library() -> None:
    assert not (ROOT / "alembic" / "__init__.py").exists()


def test_the_bare_install_imports_no_library() -> None:
    """Without site packages, as where nothing but this distribution is installed."""
    program = (
        "import importlib, sys; sys.path.insert(0, sys.argv[1]); [importlib.import_module(n) for n in sys.argv[2:]]"
    )
    command = [sys.executable, "-I", "-S", "-c", program, str(PACKAGES), *(f"headrace.{name}" for name in BARE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
