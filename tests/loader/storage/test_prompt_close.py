"""Hadoop's default retry settings for closing a file, and that ours replace them only if the cluster configures
none."""

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
    """The JVM of a cluster with the parameter as `hdfs-site.xml`, "" for none."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            conf = tmp_path_factory.mktemp("conf")
            (conf / "hdfs-site.xml").write_text(request.param)
            patch.setenv("HADOOP_CONF_DIR", str(conf))
        with spark_jvm(tmp_path_factory.mktemp("data"), {}):
            yield shared_jvm(Path(), {}).jvm


def waits_ms(first: int, times: int) -> int:
    """The total of waits that double each time."""
    return sum(first * 2**number for number in range(times))


def test_prompt_close_retries_sooner_and_as_long_as_hadoop(jvm: Any) -> None:
    assert prompt_close(jvm, jvm.org.apache.hadoop.conf.Configuration()) == SETTINGS
    keys = jvm.org.apache.hadoop.hdfs.client.HdfsClientConfigKeys.BlockWrite
    assert (keys.LOCATEFOLLOWINGBLOCK_INITIAL_DELAY_MS_KEY, keys.LOCATEFOLLOWINGBLOCK_RETRIES_KEY) == (DELAY, RETRIES)
    defaults = keys.LOCATEFOLLOWINGBLOCK_INITIAL_DELAY_MS_DEFAULT, keys.LOCATEFOLLOWINGBLOCK_RETRIES_DEFAULT
    assert defaults == (400, 5)
    assert waits_ms(int(SETTINGS[DELAY]), int(SETTINGS[RETRIES])) >= waits_ms(*defaults)


@pytest.mark.parametrize("key", SETTINGS)
def test_configured_values_of_the_cluster_stay(jvm: Any, key: str) -> None:
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    configuration.set(key, "7")
    assert prompt_close(jvm, configuration) == {}


@pytest.mark.parametrize("jvm", [SITE], indirect=True)
def test_values_of_hdfs_site_xml_stay(jvm: Any) -> None:
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    assert configuration.get(DELAY) is None, "no HDFS class has loaded the file yet"
    assert prompt_close(jvm, configuration) == {}


def test_hdfs_file_system_uses_prompt_close(jvm: Any) -> None:
    opened = HdfsFileSystem(lambda: shared_jvm(Path(), {}), "hdfs://127.0.0.1:1/")._open()[1]
    assert {key: opened.getConf().get(key) for key in SETTINGS} == SETTINGS
