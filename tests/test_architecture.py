"""The import rules of the packages. The tables below are the rules; the tests compare them with every import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from support.checkout import PACKAGE_LINKS, ROOT

# Names are relative to `headrace`: `loader` is `headrace.loader`, the directory `loader` of the checkout. `headrace`
# itself stands for the modules of the directory `headrace`. A unit is a package, or a part of one with its own rules.

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "avro_schema": (),
    "settings": (),
    "audit": (),
    "push": (),
    "kafka_wire": (),
    "kafka_wire.from_settings": ("settings",),
    "avro_codec": ("avro_schema",),
    "hive_ddl": ("avro_schema",),
    "hive_ddl.executors": ("settings.masking",),
    "compat": ("avro_schema", "hive_ddl.types", "hive_ddl.names"),
    "compat.checking": ("registry.client", "registry.errors", "settings"),
    "compat.checking.baselines.database": ("registry.api", "registry.storage"),
    "registry": ("avro_schema", "compat", "settings.line_file"),
    "registry.client.of_settings": ("settings",),
    "broker": ("kafka_wire",),
    "loader": (
        "avro_schema",
        "avro_codec",
        "kafka_wire",
        "registry.errors",
        "hive_ddl",
        "audit",
        "settings.line_file",
    ),
    "clients": ("avro_schema", "avro_codec", "settings", "audit", "registry.client", "registry.errors"),
    "clients.kafka_client": ("kafka_wire",),
    "clients.log_check": ("kafka_wire",),
    "clients.topic_check": ("kafka_wire",),
    "pipeline": ("avro_schema", "settings", "audit", "hive_ddl", "registry.client", "registry.errors"),
    "pipeline.load": ("loader", "kafka_wire"),
    "pipeline.log_counter": ("loader", "kafka_wire"),
    "pipeline.message_sample": ("clients", "kafka_wire", "loader"),
    "pipeline.recount": ("loader",),
    "pipeline.sql_damage": ("loader",),
    "pipeline.sql_endpoint": ("registry.access",),
    "pipeline.sql_server": ("loader",),
    "pipeline.storage": ("loader", "kafka_wire"),
    "pipeline.worker_daemon": ("loader",),
    "pipeline.status": ("loader", "kafka_wire"),
    "pipeline.state_backup": ("loader", "broker", "registry.storage"),
    "pipeline.demo": ("compat", "clients"),
    "gateway": (
        "audit",
        "avro_schema",
        "avro_codec",
        "clients",
        "registry.access",
        "registry.client",
        "registry.errors",
        "registry.operation",
        "settings",
    ),
    "gateway.server": ("registry.api.listening",),
    "gateway.sessions": ("kafka_wire",),
    "gateway.transactions": ("kafka_wire",),
    "console": ("settings", "audit", "pipeline", "registry.access"),
    "console.broker_reader": ("kafka_wire", "loader"),
    "console.drawing.loads": ("loader",),
    "console.commit_reader": ("loader",),
    "console.pages.hive_table": ("loader",),
    "console.pages.hive_tables": ("loader", "hive_ddl.metastore_names"),
    "console.message_fate": ("loader",),
    "console.pages.find": ("kafka_wire", "loader"),
    "console.pages.loads": ("loader",),
    "console.pages.messages": ("kafka_wire", "registry.errors"),
    "console.pages.partitions": ("kafka_wire", "loader"),
    "console.pages.quarantine": ("loader",),
    "console.pages.schema_diff": ("compat",),
    "console.pages.schema_try": ("avro_schema",),
    "console.pages.schemas": ("registry.client",),
    "console.pages.subject": ("registry.client",),
    "console.registry_reader": ("avro_schema", "registry.client", "registry.errors", "registry.names"),
    "console.schema_changes": ("avro_schema", "compat", "loader.load_schema"),
    "console.schema_rows": ("avro_schema",),
    "console.server": ("registry.api.listening",),
    "console.database": ("registry.storage.engines",),
    "headrace": (
        "avro_schema",
        "settings",
        "kafka_wire",
        "audit",
        "hive_ddl",
        "compat",
        "registry",
        "broker",
        "loader",
        "clients",
        "pipeline",
        "console",
        "gateway",
        "push",
    ),
}
"""The units that a unit may import besides its own package, `headrace.version` and the standard library. A part of a
package may import what the row of its package and its own row allow."""

LAYERS = (
    ("avro_schema", "settings", "audit", "push"),
    ("avro_codec", "kafka_wire", "hive_ddl"),
    ("compat",),
    ("registry", "broker"),
    ("compat.checking", "loader", "clients"),
    ("pipeline",),
    ("console", "gateway"),
    ("headrace",),
)
"""Lowest first. A unit imports neither from a higher layer nor from another package of its own layer."""

MAY_IMPORT_LIBRARIES: dict[str, tuple[str, ...]] = {
    "hive_ddl.executors": ("pyspark", "py4j"),
    "headrace.cli.sql_plot": ("plotext", "pygal"),
    "hive_ddl.executors.hiveserver": ("pyhive", "thrift", "thrift_sasl", "TCLIService"),
    "kafka_wire": ("kafka", "crc32c"),
    "kafka_wire.codecs": ("cramjam", "lz4", "zlib_ng", "zstandard"),
    "audit.count": ("xxhash",),
    "audit.ingest": ("kafka", "fastavro"),
    "audit.row_encoder": ("fastavro",),
    "audit.storage": ("sqlalchemy",),
    "registry.access": ("jwt",),
    "registry.api": ("flask", "werkzeug", "marshmallow"),
    "registry.api.mtls": ("uvicorn",),
    "registry.api.server": ("granian",),
    "registry.operation": ("prometheus_client",),
    "registry.storage": ("sqlalchemy", "alembic", "psycopg"),
    "broker": ("kafka", "crc32c"),
    "broker.coordinator.topic_patterns": ("re2",),
    "broker.metrics": ("prometheus_client",),
    "loader.checksum": ("xxhash",),
    "loader.write.container": ("cramjam", "zlib_ng"),
    "loader.rewrite.merge": ("fastavro",),
    "loader.inspect": ("fastavro",),
    "loader.apply.catalog": ("fastavro",),
    "loader.job": ("pyspark", "py4j"),
    "loader.storage.hadoop": ("py4j",),
    "clients": ("confluent_kafka", "fastavro"),
    "console": ("flask", "werkzeug"),
    "console.app": ("jinja2",),
    "console.server": ("granian",),
    "console.actions": ("sqlalchemy",),
    "console.database": ("sqlalchemy",),
    "console.oidc": ("authlib",),
    "console.sessions": ("sqlalchemy",),
    "gateway": ("confluent_kafka", "prometheus_client", "requests", "starlette"),
    "gateway.decompression": ("zstandard",),
    "gateway.peers": ("httpx",),
    "gateway.server": ("uvicorn",),
    "push.identity": ("_sha2",),  # of the standard library from Python 3.12 on
    "pipeline.metastore_server": ("py4j",),
    "pipeline.server_metrics": ("py4j",),
    "pipeline.metrics": ("prometheus_client",),
    "pipeline.sql": ("pyspark", "py4j"),
    "pipeline.sql_endpoint": ("pyspark", "py4j", "thrift", "TCLIService"),
    "pipeline.sql_server": ("py4j",),
    "pipeline.worker_daemon": ("pyspark",),
    "pipeline.state_backup.databases": ("sqlalchemy",),
    "pipeline.alerts.storage": ("sqlalchemy",),
    "pipeline.alerts.target": ("apprise",),
}
"""All libraries that a unit imports. A part of a package may also import the libraries of its package."""

BARE = (
    "avro_schema",
    "compat",
    "compat.checking",
    "cli.compat",
    "cli.schema",
    "cli.command",
    "cli",
    "settings",
    "registry.client",
    "push",
    "push.command",
    "cli.push",
)
"""The modules of an install without extras. Importing them needs no library."""

PACKAGES = tuple(unit for layer in LAYERS for unit in layer if "." not in unit)


@cache
def modules() -> tuple[tuple[str, Path], ...]:
    """All modules of all packages: names relative to `headrace`, and paths."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return tuple(found)


@cache
def imported_names(path: Path) -> frozenset[str]:
    """The absolute names that a module imports, including those in functions, without those for type checking only."""
    names: set[str] = set()
    for node in _runtime_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute here"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


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


def first_party(names: Iterable[str]) -> set[str]:
    """Returns the names of our own packages, relative to `headrace`. Omits `headrace.version`, which all may import."""
    found = set()
    for name in names:
        top, _, rest = name.partition(".")
        if top == "headrace" and not is_below(rest, "version"):
            found.add(rest if rest.partition(".")[0] in PACKAGES else name)
    return found


def is_below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def allowed(table: dict[str, tuple[str, ...]], module: str) -> tuple[str, ...]:
    """Returns the names that the rows of the module's unit and of all units that contain it allow."""
    return tuple(name for unit, names in table.items() if is_below(module, unit) for name in names)


def layer_of(module: str) -> int:
    """Returns the index in LAYERS of the layer of the module's unit."""
    unit = unit_of(module)
    return next(number for number, layer in enumerate(LAYERS) if unit in layer)


def test_modules_import_only_what_the_tables_allow() -> None:
    wrong = []
    for module, path in modules():
        names = imported_names(path)
        packages = (module.partition(".")[0], *allowed(MAY_IMPORT, module))
        libraries = (*sys.stdlib_module_names, "headrace", *allowed(MAY_IMPORT_LIBRARIES, module))
        forbidden = {name for name in first_party(names) if not any(is_below(name, package) for package in packages)}
        forbidden |= {name for name in names if name.partition(".")[0] not in libraries}
        wrong += [f"{module} imports {name}" for name in sorted(forbidden)]
    assert not wrong, "\n".join(wrong)


def test_no_import_goes_to_a_higher_layer() -> None:
    wrong = []
    for module, path in modules():
        package = module.partition(".")[0]
        for name in sorted(first_party(imported_names(path))):
            is_own = name.partition(".")[0] == package and layer_of(name) == layer_of(module)
            if not is_own and layer_of(name) >= layer_of(module):
                wrong.append(f"{module} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_tables_have_no_unused_row() -> None:
    unused = []
    found = {module: imported_names(path) for module, path in modules()}
    for table, names_of in (
        (MAY_IMPORT, lambda module: first_party(found[module])),
        (MAY_IMPORT_LIBRARIES, lambda module: found[module]),
    ):
        for unit, row in table.items():
            names = {name for module in found if is_below(module, unit) for name in names_of(module)}
            unused += [f"{unit} → {row_name}" for row_name in row if not any(is_below(n, row_name) for n in names)]
    assert not unused, "\n".join(unused)


def unit_of(module: str) -> str:
    """Returns the innermost unit in LAYERS that contains the module."""
    return max((unit for layer in LAYERS for unit in layer if is_below(module, unit)), key=len)


def imports_of_units() -> dict[str, set[str]]:
    """Returns the units that each unit imports."""
    found: dict[str, set[str]] = {unit: set() for layer in LAYERS for unit in layer}
    for module, path in modules():
        found[unit_of(module)] |= {unit_of(name) for name in first_party(imported_names(path))}
    return {unit: imported - {unit} for unit, imported in found.items()}


def test_map_in_contributing_shows_every_import() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    shown = {unit: set(names.split()) for unit, names in re.findall(r"^([\w.]+) +→ (.*)$", page, re.MULTILINE)}
    found = {unit: imported or {"nothing"} for unit, imported in imports_of_units().items()}
    wrong = [f"{unit:16} → {' '.join(sorted(found[unit]))}" for unit in found if shown.get(unit) != found[unit]]
    assert not wrong, "these lines of the map should be:\n" + "\n".join(wrong)


def test_public_classes_have_different_names() -> None:
    places: dict[str, list[str]] = {}
    for module, path in modules():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_top_level_package_is_in_the_tables() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages == set(PACKAGES)


def test_alembic_directory_does_not_shadow_the_library() -> None:
    assert not (ROOT / "alembic" / "__init__.py").exists()


def test_the_bare_install_imports_no_library() -> None:
    """Runs Python without site packages, as in an environment with this distribution alone."""
    program = (
        "import importlib, sys; sys.path.insert(0, sys.argv[1]); [importlib.import_module(n) for n in sys.argv[2:]]"
    )
    command = [sys.executable, "-I", "-S", "-c", program, str(PACKAGE_LINKS), *(f"headrace.{name}" for name in BARE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
