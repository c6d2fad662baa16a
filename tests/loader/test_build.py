"""The build id of the loader: equal for equal sources, different after any change."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from headrace.loader import build


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary package that replaces `PACKAGES`, the sources of the build id."""
    directory = tmp_path / "package"
    (directory / "deep").mkdir(parents=True)
    (directory / "one.py").write_text("1\n")
    (directory / "deep" / "two.py").write_text("2\n")
    module = ModuleType("headrace.package")
    module.__path__ = [str(directory)]
    monkeypatch.setattr(build, "PACKAGES", (module,))
    build._sources.cache_clear()
    yield directory
    build._sources.cache_clear()


def fresh_build() -> str:
    build._sources.cache_clear()
    return build.current_build()


def test_build_does_not_depend_on_the_directory_of_the_sources(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fresh_build()
    copy = shutil.copytree(package, tmp_path / "copy")
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "one.cpython-311.pyc").write_bytes(b"compiled")
    monkeypatch.setattr(build.PACKAGES[0], "__path__", [str(copy)])
    assert fresh_build() == before


def test_build_changes_with_content_name_and_removal_of_a_module(package: Path) -> None:
    builds = {fresh_build()}
    (package / "one.py").write_text("3\n")
    builds.add(fresh_build())
    (package / "one.py").rename(package / "three.py")
    builds.add(fresh_build())
    (package / "deep" / "two.py").unlink()
    builds.add(fresh_build())
    assert len(builds) == 4


def test_build_is_computed_once_per_process(package: Path) -> None:
    """A change of the checkout under a running process does not change the code that it runs."""
    before = fresh_build()
    (package / "one.py").write_text("3\n")
    assert build.current_build() == before
