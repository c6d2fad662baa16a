"""Installed wheels: the compiled core, schema checks without any library, and database migrations."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headrace.cli.manual import man_pages
from headrace.loader.build import current_build
from support.checkout import ROOT

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Builds from a copy, because a build writes into the source directory and includes leftovers of earlier builds.
    directory = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "headrace-data", "__pycache__", "tests", "docs")
    source = shutil.copytree(ROOT, directory / "source", ignore=ignored)
    return build_wheel(source, directory, dict(os.environ))


def build_wheel(source: Path, directory: Path, environment: dict[str, str]) -> Path:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory), str(source)]
    subprocess.run(build, check=True, env=environment)
    (built,) = directory.glob("*.whl")
    return built


def installed_build(wheel: Path, directory: Path) -> str:
    """Returns the build of the installed wheel's codec, and why it has no core."""
    code = "from headrace import avro_codec; print(avro_codec.build(), avro_codec.missing_core_reason(), sep='; ')"
    return run_installed(wheel, directory, code)


def run_installed(wheel: Path, directory: Path, code: str) -> str:
    """Returns the output of code that imports the extracted wheel and the libraries of this environment."""
    directory.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=True).stdout


def test_wheel_contains_core_and_names_its_platform(wheel: Path, tmp_path: Path) -> None:
    assert "-py3-none-linux_" in wheel.name
    assert installed_build(wheel, tmp_path).startswith("core ")


def test_wheel_and_checkout_have_the_same_build(wheel: Path, tmp_path: Path) -> None:
    printed = run_installed(wheel, tmp_path, "from headrace.loader.build import current_build; print(current_build())")
    assert printed == f"{current_build()}\n"


def test_wheel_built_without_compiler_is_platform_independent(wheel: Path, tmp_path: Path) -> None:
    source = wheel.parent / "source"
    shutil.rmtree(source / "build", ignore_errors=True)
    environment = {**{name: value for name, value in os.environ.items() if name != "CC"}, "PATH": str(tmp_path)}
    pure = build_wheel(source, tmp_path / "pure", environment)
    assert pure.name.endswith("-py3-none-any.whl")
    assert installed_build(pure, tmp_path / "installed") == "python; libheadrace_core.so was not built\n"


def test_installation_without_extras_checks_schemas(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", str(wheel)], check=True)

    installed = subprocess.run([*pip, "list", "--format", "freeze"], capture_output=True, text=True, check=True).stdout
    names = {line.partition("==")[0] for line in installed.lower().split()}
    assert names <= {"headrace", "pip", "setuptools", "wheel"}

    def headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(environment / "bin" / "headrace"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    schemas = ROOT / "pipeline" / "demo" / "schemas"
    first, second, third = (str(schemas / f"flights-v{number}.avsc") for number in (1, 2, 3))
    refused = headrace("compat", "check", third, "--against", second)
    assert refused.returncode == 1, refused.stderr
    for word in ("flights-v3.avsc", "dep_delay", "gate", "default"):
        assert word in refused.stdout
    lines = Path(third).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if '"gate"' in text)
    assert f"flights-v3.avsc:{line}:" in refused.stdout
    accepted = headrace("compat", "check", second, "--against", first)
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr

    assert headrace("completion", "bash").stdout.endswith("complete -o default -F _headrace headrace\n")
    installed_pages = sorted((environment / "share" / "man" / "man1").iterdir())
    assert [page.name for page in installed_pages] == sorted(name for name, _ in man_pages())
    server = headrace("registry", "serve")
    assert server.returncode == 2
    assert "pip install '.[registry]'" in server.stderr
    assert "docs/install.md" in server.stderr
    assert len(server.stderr.strip().splitlines()) == 1


def test_installed_wheel_runs_database_migrations(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(installed)
    assert "headrace/registry/storage/migrations/env.py" in names
    top_level = {name.partition("/")[0] for name in names}
    assert {name for name in top_level if not name.endswith((".dist-info", ".data"))} == {"headrace"}, (
        "the wheel installs one top-level package"
    )

    def run(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(installed)}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout

    found = run("-c", "from headrace.registry.storage import database; print(database._migrations().dir)").strip()
    assert Path(found) == installed / "headrace" / "registry" / "storage" / "migrations"
    assert "is up to date" in run("-m", "headrace", "registry", "db", "upgrade", "--data-dir", "data")
    assert (tmp_path / "data" / "registry.db").exists()


COMMIT_OF_WHEEL = "from headrace.version import commit_id; print(commit_id())"


def test_wheel_of_a_checkout_names_its_commit(wheel: Path, tmp_path: Path) -> None:
    """The wheel of the fixture is built from a directory without `.git`."""
    assert run_installed(wheel, tmp_path / "unknown", COMMIT_OF_WHEEL) == "\n"
    source = shutil.copytree(wheel.parent / "source", tmp_path / "source", ignore=shutil.ignore_patterns("build"))
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-C", str(source)]
    for words in (["init", "--quiet"], ["add", "setup.py"], ["commit", "--quiet", "--message", "first"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    clean = build_wheel(source, tmp_path / "clean", dict(os.environ))
    assert run_installed(clean, tmp_path / "a", COMMIT_OF_WHEEL) == f"{commit}\n"
    with (source / "setup.py").open("a") as file:
        file.write("# changed\n")
    changed = build_wheel(source, tmp_path / "changed", dict(os.environ))
    assert run_installed(changed, tmp_path / "b", COMMIT_OF_WHEEL) == f"{commit}-dirty\n"
    given = build_wheel(source, tmp_path / "given", {**os.environ, "HEADRACE_COMMIT": "c0ffee"})
    assert run_installed(given, tmp_path / "c", COMMIT_OF_WHEEL) == "c0ffee\n"
