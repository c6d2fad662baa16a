"""Builds the `headrace` distribution.

A bare install is the compatibility command and nothing else; servers and the loader are extras, so that a CI job
that checks schemas pulls neither Flask nor Spark.
"""

import importlib.util
import os
from pathlib import Path
from types import ModuleType

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel, get_platform
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
VERSION = (HERE / "headrace" / "version.py").read_text(encoding="utf-8").split('VERSION = "')[1].split('"')[0]

DECOMPRESSION = ["cramjam>=2.9,<3", "lz4>=4.3,<5", "zlib-ng>=1,<2", "zstandard>=0.23,<1"]
# kafka-python has the protocol: it finds out whether a broker lets us in, and loads read by it.
KAFKA = ["kafka-python==3.0.12", "fastavro>=1.12,<2", "crc32c>=2.7,<3", "xxhash>=3.5,<4"]
PROMETHEUS = "prometheus-client>=0.21,<1"
PRODUCER = ["confluent-kafka>=2.11,<2.17", *KAFKA]
REGISTRY = [
    "flask>=3.1,<4",
    "sqlalchemy>=2.0.36,<2.2",
    "alembic>=1.14,<2",
    "marshmallow>=3.26,<5",
    "granian[uvloop]>=2.8,<3",
    PROMETHEUS,
    "psycopg[binary]>=3.2,<4",  # PostgreSQL's driver with its own libpq
    "PyJWT[crypto]>=2.10,<3",
    "uvicorn>=0.34,<1",  # where clients show certificates, whose subjects granian does not tell
]
# The broker looks inside compressed batches when it is asked for an offset by time.
BROKER = ["kafka-python==3.0.12", "crc32c>=2.7,<3", "google-re2>=1.1,<2", *DECOMPRESSION, PROMETHEUS]
# What tasks of a load import, for the workers of a cluster whose Spark brings its own pyspark.
EXECUTOR = [*KAFKA, *DECOMPRESSION]
LOADER = [
    *PRODUCER,
    *EXECUTOR,
    "python-snappy>=0.7,<1",  # kafka-python's codec, with which the audit reads its topic
    "pyspark==4.3.0",
    "PyHive>=0.7,<0.8",
    "thrift>=0.21,<1",
    "thrift-sasl>=0.4.3,<0.5",
    "pure-sasl>=0.6.2,<0.7",
]
ALL = sorted({*PRODUCER, *REGISTRY, *BROKER, *LOADER})
DEV = [
    *ALL,
    "aiokafka>=0.12,<0.15",
    "confluent-kafka[avro,schemaregistry]>=2.11,<2.17",
    "cryptography>=43",
    "hypothesis>=6.115,<7",
    "jsonschema>=4.23,<5",
    "mypy>=1.13,<3",
    "openapi-spec-validator>=0.7.1,<1",
    "pre-commit>=4,<5",
    "pytest>=8.3,<10",
    "pytest-timeout>=2.3,<3",
    "pytest-xdist>=3.6,<4",
    "python-schema-registry-client>=2.6,<3",
    "pyyaml>=6,<7",
    "ruff>=0.8,<1",
    "flask-cors>=6,<7",  # what moto needs to serve S3; its extra "server" has thirty libraries for everything else
    "moto[s3]>=5.2,<6",
    "schemathesis>=4.0,<5",
    "xmlschema>=3.4,<5",
]

ROOMS = (
    "avro_schema",
    "avro_codec",
    "settings",
    "kafka_wire",
    "compat",
    "hive_ddl",
    "registry",
    "broker",
    "loader",
    "audit",
    "clients",
    "pipeline",
)
"""Directories of the checkout that are packages below `headrace`, so that an application gets this one name and no
`audit` or `pipeline` beside its own."""

DIRECTORIES = {
    "headrace": "headrace",
    **{f"headrace.{room}": room for room in ROOMS},
    # The migrations stand in the top-level directory `alembic`, where a developer looks for them. As a package of that
    # name they would end up inside the library's own directory, so they are installed below the room that runs them.
    "headrace.registry.storage.migrations": "alembic",
    "headrace.registry.storage.migrations.versions": "alembic/versions",
}


def core() -> ModuleType:
    """The script that compiles the loader's core; none of the packages can be imported yet."""
    spec = importlib.util.spec_from_file_location("build_core", HERE / "avro_codec" / "core" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


WHEEL_FOR = os.environ.get("HEADRACE_WHEEL_FOR", "")
"""The processor that `make wheel` cross-compiles for; otherwise the core is compiled for this machine."""


class BuildPy(build_py):
    """Compiles the core with the rest, or says in one line why not: without it everything works, and loads slower."""

    def run(self) -> None:
        super().run()
        built = core()
        target = Path(self.build_lib) / "headrace" / "avro_codec" / "core" / built.LIBRARY
        target.unlink(missing_ok=True)  # of an earlier build, perhaps for another machine
        try:
            if self.editable_mode:
                built.build_in_place()
            elif WHEEL_FOR:
                built.build(target, built.zig(), "-target", built.ZIG_TARGETS[WHEEL_FOR])
            else:
                built.build(target, built.compiler())
        except built.BuildError as error:
            if WHEEL_FOR:
                raise
            print(f"headrace: loads will run without their core, slower: {error}")


class BdistWheel(bdist_wheel):
    """The core has no Python in it, so that one wheel serves every Python of a platform; without it, every platform."""

    def get_tag(self) -> tuple[str, str, str]:
        if WHEEL_FOR:
            return "py3", "none", f"manylinux_2_17_{WHEEL_FOR}.manylinux2014_{WHEEL_FOR}"
        platform = self.plat_name or get_platform(self.bdist_dir)
        return "py3", "none", platform.replace("-", "_").replace(".", "_") if has_compiler() else "any"


def has_compiler() -> bool:
    built = core()
    try:
        built.compiler()
    except built.BuildError:
        return False
    return True


setup(
    name="headrace",
    version=VERSION,
    description="Avro schema registry with an automatic Hadoop/Hive loader",
    long_description=(HERE / "README.md").read_text(encoding="utf-8") if (HERE / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.14",
    packages=[
        *DIRECTORIES,
        *(f"{name}.{sub}" for name, directory in DIRECTORIES.items() for sub in find_packages(str(HERE / directory))),
    ],
    package_dir=DIRECTORIES,
    package_data={"headrace.pipeline.demo": ["schemas/*.avsc"], "headrace.kafka_wire.messages": ["*.json"]},
    cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel},
    entry_points={"console_scripts": ["headrace = headrace.cli:main"]},
    extras_require={
        "producer": PRODUCER,
        "registry": REGISTRY,
        "broker": BROKER,
        "executor": EXECUTOR,
        "loader": LOADER,
        "all": ALL,
        "dev": DEV,
    },
)
