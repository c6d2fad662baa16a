"""Which waiting Hadoop's own configuration has, and that ours takes its place only where nobody has chosen one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.hive_ddl.executors.session import shared_jvm
from headrace.loader.storage.hadoop.jvm import HdfsFileSystem
from headrace.loader.storage.hadoop.prompt_close import SETTINGS, prompt_close
from support.loader.real_storage import spark_jvm

pytestmark = pytest.mark.spark

DELAY, RETRIES = SETTINGS


SITE = f"<configuration><property><name>{DELAY}</name><value>7</value></property></configuration>"


@pytest.fixture(scope="module", params=[""])
def jvm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One of a cluster whose `hdfs-site.xml` is the parameter, if it has one."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            conf = tmp_path_factory.mktemp("conf")
            (conf / "hdfs-site.xml").write_text(request.param)
            patch.setenv("HADOOP_CONF_DIR", str(conf))
        with spark_jvm(tmp_path_factory.mktemp("data"), {}):
            yield shared_jvm(Path(), {}).jvm


def waits_ms(first: int, times: int) -> int:
    """In all, when each is twice the one before."""
    return sum(first * 2**number for number in range(times))


def test_it_asks_soon_and_for_no_less_time_than_hadoop(jvm: Any) -> None:
    assert prompt_close(jvm, jvm.org.apache.hadoop.conf.Configuration()) == SETTINGS
    keys = jvm.org.apache.hadoop.hdfs.client.HdfsClientConfigKeys.BlockWrite
    assert (keys.LOCATEFOLLOWINGBLOCK_INITIAL_DELAY_MS_KEY, keys.LOCATEFOLLOWINGBLOCK_RETRIES_KEY) == (DELAY, RETRIES)
    hadoops = keys.LOCATEFOLLOWINGBLOCK_INITIAL_DELAY_MS_DEFAULT, keys.LOCATEFOLLOWINGBLOCK_RETRIES_DEFAULT
    assert hadoops == (400, 5)
    assert waits_ms(int(SETTINGS[DELAY]), int(SETTINGS[RETRIES])) >= waits_ms(*hadoops)


@pytest.mark.parametrize("key", SETTINGS)
def test_what_the_cluster_has_chosen_stays(jvm: Any, key: str) -> None:
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    configuration.set(key, "7")
    assert prompt_close(jvm, configuration) == {}


@pytest.mark.parametrize("jvm", [SITE], indirect=True)
def test_so_does_what_its_file_says(jvm: Any) -> None:
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    assert configuration.get(DELAY) is None, "nothing of HDFS was needed so far"
    assert prompt_close(jvm, configuration) == {}


def test_a_file_system_has_it(jvm: Any) -> None:
    opened = HdfsFileSystem(lambda: shared_jvm(Path(), {}), "hdfs://127.0.0.1:1/")._open()[1]
    assert {key: opened.getConf().get(key) for key in SETTINGS} == SETTINGS
