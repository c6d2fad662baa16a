"""What tells one build from another."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from headrace.loader import build


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of its own that the build is made of."""
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


def now() -> str:
    build._sources.cache_clear()
    return build.current_build()


def test_the_same_sources_elsewhere_are_the_same_build(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = now()
    copy = shutil.copytree(package, tmp_path / "copy")
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "one.cpython-311.pyc").write_bytes(b"compiled")
    monkeypatch.setattr(build.PACKAGES[0], "__path__", [str(copy)])
    assert now() == before


def test_a_module_that_is_another_has_another_name_or_is_not_there_is_another_build(package: Path) -> None:
    builds = {now()}
    (package / "one.py").write_text("3\n")
    builds.add(now())
    (package / "one.py").rename(package / "three.py")
    builds.add(now())
    (package / "deep" / "two.py").unlink()
    builds.add(now())
    assert len(builds) == 4


def test_it_is_looked_at_once(package: Path) -> None:
    """A checkout that is changed under a running process does not change what it runs."""
    before = now()
    (package / "one.py").write_text("3\n")
    assert build.current_build() == before
