"""The public names of `headrace`, and that it is the only top-level package that it installs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from support.pages import page

PACKAGES = ("audit", "avro_schema", "broker", "compat", "hive_ddl", "loader", "pipeline", "registry")


def run(program: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], cwd=directory, capture_output=True, text=True, check=False)


def test_public_names_are_imported_on_first_use(tmp_path: Path) -> None:
    program = """
import sys
import headrace
assert "kafka" not in sys.modules and "fastavro" not in sys.modules
assert headrace.RegistryClient.__name__ == "RegistryClient"
assert "kafka" not in sys.modules
assert headrace.Producer.__name__ == "Producer"
assert headrace.Consumer.__name__ == "Consumer"
"""
    found = run(program, tmp_path)
    assert found.returncode == 0, found.stderr


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'Nothing'"):
        _ = headrace.Nothing


def test_every_public_name_exists_and_is_documented() -> None:
    documented = page("docs/clients.md") + page("docs/registry-clients.md")
    assert dir(headrace) == sorted(headrace.__all__)
    for name in headrace.__all__:
        assert getattr(headrace, name).__name__ == name
        assert f"`{name}" in documented or f" {name}" in documented, f"{name} is on no page"


def test_errors_can_be_caught_by_their_public_roots() -> None:
    errors = [getattr(headrace, name) for name in headrace.__all__]
    for error in errors:
        if isinstance(error, type) and issubclass(error, Exception):
            roots = (headrace.ProducerError, headrace.ConsumerError, headrace.RegistryError, headrace.SettingsError)
            assert issubclass(error, roots), error


def test_applications_may_use_the_names_of_our_packages(tmp_path: Path) -> None:
    """Creates modules, packages and empty directories with the names of our packages in the checkout."""
    for package in PACKAGES:
        if package in ("audit", "pipeline"):
            (tmp_path / f"{package}.py").write_text("MINE = True")
        elif package in ("registry", "loader"):
            (tmp_path / package).mkdir()
        else:
            (tmp_path / package).mkdir()
            (tmp_path / package / "__init__.py").write_text("MINE = True")
    program = """
import audit, avro_schema, broker, compat, hive_ddl, pipeline
import loader, registry
from headrace import Consumer, Producer, RegistryClient
assert all(module.MINE for module in (audit, avro_schema, broker, compat, hive_ddl, pipeline))
"""
    found = run(program, tmp_path)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_not_importable_outside_headrace(package: str, tmp_path: Path) -> None:
    found = run(f"import {package}", tmp_path)
    assert f"ModuleNotFoundError: No module named '{package}'" in found.stderr
