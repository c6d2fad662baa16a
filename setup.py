"""Builds the `headrace` distribution.

An install without extras contains the compatibility command only. The servers and the loader are extras, so that a CI
job that checks schemas installs neither Flask nor Spark.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel, get_platform
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
DECOMPRESSION = ["cramjam>=2.9,<3", "lz4>=4.3,<5", "zlib-ng>=1,<2", "zstandard>=0.23,<1"]
# kafka-python encodes and decodes the protocol's messages; loads read with it, and clients authenticate with it.
KAFKA = ["kafka-python==3.0.12", "fastavro>=1.12,<2", "crc32c>=2.7,<3", "xxhash>=3.5,<4"]
PROMETHEUS = "prometheus-client>=0.21,<1"
UVICORN = "uvicorn>=0.34,<1"
PRODUCER = ["confluent-kafka>=2.11,<2.17", *KAFKA]
DATABASE = ["sqlalchemy>=2.0.36,<2.2", "psycopg[binary]>=3.2,<4"]  # psycopg: PostgreSQL's driver with its own libpq
REGISTRY = [
    *DATABASE,
    "flask>=3.1,<4",
    "alembic>=1.14,<2",
    "marshmallow>=3.26,<5",
    "granian[uvloop]>=2.8,<3",
    PROMETHEUS,
    "PyJWT[crypto]>=2.10,<3",
    UVICORN,  # serves client certificates: granian does not pass on their subjects
]
GATEWAY = [
    *PRODUCER,
    "starlette>=1.10,<2",
    UVICORN,
    "httptools>=0.9,<1",
    "uvloop>=0.23,<1",
    "zstandard>=0.23,<1",
    "requests>=2.34,<3",  # posts to webhooks
    "httpx>=0.28,<1",  # passes requests on to other gateways
    PROMETHEUS,
    "PyJWT[crypto]>=2.10,<3",
]
# The broker decompresses batches to find an offset by time.
BROKER = ["kafka-python==3.0.12", "crc32c>=2.7,<3", "google-re2>=1.1,<2", *DECOMPRESSION, PROMETHEUS]
# The imports of a load's tasks, for workers of a cluster whose Spark includes pyspark.
EXECUTOR = [*KAFKA, *DECOMPRESSION]
# The imports of a load, for a driver on a cluster whose Spark includes pyspark.
DRIVER = [
    *DATABASE,  # the audit's counts
    *PRODUCER,
    *EXECUTOR,
    PROMETHEUS,  # metrics of `headrace status`
    "python-snappy>=0.7,<1",  # kafka-python's codec, the audit reads its topic with it
    "PyHive>=0.7,<0.8",
    "thrift>=0.21,<1",
    "thrift-sasl>=0.4.3,<0.5",
    "pure-sasl>=0.6.2,<0.7",
]
LOADER = [
    *DRIVER,
    "pyspark==4.3.0",
    "plotext>=5.3,<6",  # plots of `headrace sql` in a terminal
    "pygal>=3,<4",  # and as SVG
]
# For notebooks with the tables (docs/notebook.md). PySpark 4.3 needs pandas 2.2 and PyArrow 18, and warns of pandas 3.
NOTEBOOK = ["pandas>=2.2,<3", "pyarrow>=18,<27"]
# Services that receive alerts by `alerts.notify` (docs/alerts.md).
NOTIFY = ["apprise>=1.9,<3"]
# Sign-in to the console through an OpenID provider (docs/console.md). Authlib's client needs requests.
CONSOLE_OIDC = ["authlib>=1.8,<1.10", "requests>=2.32,<3"]
ALL = sorted({*PRODUCER, *REGISTRY, *BROKER, *LOADER, *GATEWAY})
DEV = [
    *ALL,
    *NOTEBOOK,
    *NOTIFY,
    *CONSOLE_OIDC,
    "aiokafka>=0.12,<0.15",
    "axe-playwright-python>=0.1.4,<0.2",  # brings playwright; tests of the console need Debian's chromium too
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
    "flask-cors>=6,<7",  # moto needs it to serve S3; its extra "server" brings thirty unrelated libraries
    "moto[s3]>=5.2,<6",
    "schemathesis>=4.0,<5",
    "xmlschema>=3.4,<5",
]

PACKAGES = (
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
    "console",
    "gateway",
    "push",
)
"""Directories of the checkout that are installed as packages in `headrace`, so that names such as `audit` and
`pipeline` stay free for applications."""

DIRECTORIES = {
    "headrace": "headrace",
    **{f"headrace.{package}": package for package in PACKAGES},
    # Developers expect migrations in a top-level directory `alembic`. Installed under that name they would be in the
    # directory of the library Alembic, so they are installed in the package that runs them.
    "headrace.registry.storage.migrations": "alembic",
    "headrace.registry.storage.migrations.versions": "alembic/versions",
}


def load_module(path: Path) -> ModuleType:
    """Loads a module of the checkout. At this point no package can be imported."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def core() -> ModuleType:
    """Returns the script that compiles the Avro codec's core."""
    return load_module(HERE / "avro_codec" / "core" / "build.py")


VERSION_MODULE = load_module(HERE / "headrace" / "version.py")


WHEEL_FOR = os.environ.get("HEADRACE_WHEEL_FOR", "")
"""The processor that `make wheel` cross-compiles for. Empty: the core is compiled for this machine."""


class BuildPy(build_py):
    """Also compiles the core, and writes the git commit and the man pages. Without a compiler the build prints one
    line: everything works, but loads are slower."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self.write_commit()
            self.write_man_pages()
        self.compile_core()

    def write_commit(self) -> None:
        """Writes the commit of the checkout. A checkout without its directory `.git`, as in a build of an image, has
        it in the environment variable HEADRACE_COMMIT."""
        commit = os.environ.get("HEADRACE_COMMIT") or VERSION_MODULE.checkout_commit(HERE)
        file = Path(self.build_lib) / "headrace" / VERSION_MODULE.COMMIT_FILE
        file.unlink(missing_ok=True)  # left by an earlier build
        if commit:
            file.write_text(f"{commit}\n", encoding="ascii")

    def write_man_pages(self) -> None:
        """Writes the man pages, which are installed in `share/man/man1`. `man` finds them next to a `bin` of PATH."""
        packages = Path(self.build_lib).resolve()
        directory = packages.parent / "man"
        environment = {**os.environ, "PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "headrace.cli.manual", str(directory)]
        subprocess.run(command, cwd=packages, env=environment, check=True)
        pages = sorted(os.path.relpath(page, HERE) for page in directory.glob("*.1"))
        self.distribution.data_files = [("share/man/man1", pages)]

    def compile_core(self) -> None:
        built = core()
        target = Path(self.build_lib) / "headrace" / "avro_codec" / "core" / built.LIBRARY
        target.unlink(missing_ok=True)  # left by an earlier build, perhaps for another machine
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
            print(f"headrace: the core was not compiled, so that loads run slower: {error}")


class BdistWheel(bdist_wheel):
    """The core does not use Python's C API: one wheel fits all Python versions of a platform, and without a core all
    platforms."""

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
    version=VERSION_MODULE.VERSION,
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
    package_data={
        "headrace.pipeline.demo": ["schemas/*.avsc"],
        "headrace.kafka_wire.messages": ["*.json"],
        "headrace.console": ["templates/*.html", "static/*"],
    },
    cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel},
    entry_points={"console_scripts": ["headrace = headrace.__main__:main"]},
    extras_require={
        "producer": PRODUCER,
        "registry": REGISTRY,
        "broker": BROKER,
        "gateway": GATEWAY,
        "executor": EXECUTOR,
        "driver": DRIVER,
        "loader": LOADER,
        "all": ALL,
        "notebook": NOTEBOOK,
        "notify": NOTIFY,
        "console-oidc": CONSOLE_OIDC,
        "dev": DEV,
    },
)
