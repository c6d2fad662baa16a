"""What an installed wheel brings: the schema check without any library, and migrations that it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headrace.loader.build import current_build
from support.checkout import ROOT

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Built from a copy, because building leaves directories beside the sources and takes in what an earlier one left
    # there.
    directory = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "headrace-data", "__pycache__", "tests", "docs")
    source = shutil.copytree(ROOT, directory / "source", ignore=ignored)
    return built_of(source, directory, dict(os.environ))


def built_of(source: Path, directory: Path, environment: dict[str, str]) -> Path:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory), str(source)]
    subprocess.run(build, check=True, env=environment)
    (built,) = directory.glob("*.whl")
    return built


def rows_are_made_by(wheel: Path, directory: Path) -> str:
    """What an installation of the wheel says of it."""
    code = "from headrace import avro_codec; print(avro_codec.build(), avro_codec.why_no_core(), sep='; ')"
    return said_by(wheel, directory, code)


def said_by(wheel: Path, directory: Path, code: str) -> str:
    """What an installation of the wheel prints; this environment has its libraries."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_wheel_brings_the_core_and_is_of_its_platform(wheel: Path, tmp_path: Path) -> None:
    assert "-py3-none-linux_" in wheel.name
    assert rows_are_made_by(wheel, tmp_path).startswith("core ")


def test_tasks_of_a_wheel_and_a_driver_of_its_checkout_are_one_build(wheel: Path, tmp_path: Path) -> None:
    assert said_by(wheel, tmp_path, "from headrace.loader.build import current_build as it; print(it())") == (
        f"{current_build()}\n"
    )


def test_without_a_compiler_a_wheel_is_of_every_platform_and_the_reference_runs(wheel: Path, tmp_path: Path) -> None:
    source = wheel.parent / "source"
    shutil.rmtree(source / "build", ignore_errors=True)
    environment = {**{name: value for name, value in os.environ.items() if name != "CC"}, "PATH": str(tmp_path)}
    pure = built_of(source, tmp_path / "pure", environment)
    assert pure.name.endswith("-py3-none-any.whl")
    assert rows_are_made_by(pure, tmp_path / "installed") == "python; libheadrace_core.so was not built\n"


def test_a_bare_install_checks_schemas(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", str(wheel)], check=True)

    installed = subprocess.run([*pip, "list", "--format", "freeze"], capture_output=True, text=True, check=True).stdout
    names = {line.partition("==")[0] for line in installed.lower().split()}
    assert names <= {"headrace", "pip", "setuptools", "wheel"}

    def headrace(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(environment / "bin" / "headrace"), *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    schemas = ROOT / "pipeline" / "demo" / "schemas"
    first, second, third = (str(schemas / f"flights-v{number}.avsc") for number in (1, 2, 3))
    refused = headrace("compat", "check", third, "--against", second)
    assert refused.returncode == 1, refused.stderr
    for words in ("flights-v3.avsc", "dep_delay", "gate", "default"):
        assert words in refused.stdout
    lines = Path(third).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if '"gate"' in text)
    assert f"flights-v3.avsc:{line}:" in refused.stdout
    accepted = headrace("compat", "check", second, "--against", first)
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr

    server = headrace("registry", "serve")
    assert server.returncode == 2
    assert "pip install '.[registry]'" in server.stderr
    assert "docs/install.md" in server.stderr
    assert len(server.stderr.strip().splitlines()) == 1


def test_a_wheel_migrates(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(installed)
    assert "headrace/registry/storage/migrations/env.py" in names
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"headrace"}, "one name in the user's environment"

    def run(code: list[str]) -> str:
        environment = {**os.environ, "PYTHONPATH": str(installed)}
        command = [sys.executable, *code]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout

    found = run(["-c", "from headrace.registry.storage import database; print(database._migrations().dir)"]).strip()
    assert Path(found) == installed / "headrace" / "registry" / "storage" / "migrations"
    assert "is up to date" in run(["-m", "headrace", "registry", "db", "upgrade", "--data-dir", "data"])
    assert (tmp_path / "data" / "registry.db").exists()
