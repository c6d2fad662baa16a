"""Pig with the jars for files, and with those for tables; both start nothing until a script runs."""

from __future__ import annotations

import pytest

from support.hive.pig import Pig


@pytest.fixture(scope="session")
def pig(tmp_path_factory: pytest.TempPathFactory) -> Pig:
    return Pig(tmp_path_factory.mktemp("pig") / "avro", "pig")


@pytest.fixture(scope="session")
def hcatalog(tmp_path_factory: pytest.TempPathFactory) -> Pig:
    return Pig(tmp_path_factory.mktemp("pig") / "hcatalog", "pig-hcat")
