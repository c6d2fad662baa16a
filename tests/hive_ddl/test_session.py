"""Spark properties of a session, depending on where its tasks run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from headrace.hive_ddl.errors import MetastoreMisconfigured, SessionFailed
from headrace.hive_ddl.executors import session
from headrace.hive_ddl.executors.session import check_metastore_reachable, session_properties
from headrace.pipeline.java import ensure_java

SOCKETS = "spark.python.unix.domain.socket.enabled"


@pytest.mark.parametrize(
    ("master", "expected"), [("local[2]", "true"), ("local-cluster[1,1,1024]", "true"), ("yarn", None)]
)
def test_unix_sockets_only_for_local_masters(master: str, expected: str | None, tmp_path: Path) -> None:
    """Paths of cluster directories may be longer than the name of a socket."""
    properties = session_properties(
        app_name="t", master=master, metastore_uri=None, data_dir=tmp_path, warehouse_uri="file:///w"
    )
    assert properties.get(SOCKETS) == expected
    assert ("spark.driver.host" in properties) == (expected is not None)


@pytest.mark.parametrize("uri", ["thrift://[x:9083", "thrift://127.0.0.1:99999", "127.0.0.1:9083"])
def test_malformed_metastore_uri_is_an_error_that_shows_the_expected_form(uri: str) -> None:
    with pytest.raises(MetastoreMisconfigured, match=rf"{re.escape(uri)}\b.*\bthrift://host:port\b"):
        check_metastore_reachable(uri)


@pytest.mark.parametrize(("short_lived", "level", "threshold"), [(True, "1", "5000"), (False, "4", "50000")])
def test_compiler_options_depend_on_session_lifetime(
    short_lived: bool, level: str, threshold: str, tmp_path: Path
) -> None:
    """Reads the options as Java itself interprets them."""
    properties = session_properties(
        app_name="t",
        master="local",
        metastore_uri=None,
        data_dir=tmp_path,
        warehouse_uri="file:///w",
        short_lived=short_lived,
    )
    options = shlex.split(properties["spark.driver.extraJavaOptions"])
    java = ensure_java(tmp_path, dict(os.environ)) / "bin" / "java"
    command = [str(java), *options, "-XX:+PrintFlagsFinal", "-version"]
    flags = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"(?:TieredStopAtLevel|Tier4InvocationThreshold) += (\S+)", flags) == [threshold, level]


@pytest.mark.parametrize(
    ("master", "before", "expected"),
    [("local[2]", None, "127.0.0.1"), ("local", "10.1.2.3", "10.1.2.3"), ("yarn", None, None)],
)
def test_local_spark_uses_loopback_address(
    master: str, before: str | None, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    if before:
        monkeypatch.setenv("SPARK_LOCAL_IP", before)
    found = []

    def launched(*_: object) -> None:
        found.append(os.environ.get("SPARK_LOCAL_IP"))

    monkeypatch.setattr(session, "launch_gateway", launched)
    session.open_jvm(tmp_path, {"spark.master": master})
    assert found == [expected]
    assert os.environ.get("SPARK_LOCAL_IP") == before


def test_spark_failure_without_output_and_message_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "launch_gateway", MagicMock(side_effect=OSError()))
    with pytest.raises(SessionFailed, match=r"spark\.log") as failed:
        session.open_jvm(tmp_path, {"spark.master": "local"})
    assert "OSError" in str(failed.value)


def test_jvm_command_line_contains_no_secrets(tmp_path: Path) -> None:
    """`ps` shows the command line to every user of the machine. Spark and Hadoop still have the secrets."""
    secrets = {
        "spark.hadoop.fs.s3a.secret.key": "one-s3cr3t",
        "spark.hadoop.javax.jdo.option.ConnectionPassword": "two-s3cr3t",
        "spark.hadoop.fs.s3a.access.key": "three-s3cr3t",
    }
    ensure_java(tmp_path, os.environ)
    gateway = session.open_jvm(tmp_path, {"spark.master": "local", "spark.hadoop.fs.s3a.endpoint": "told", **secrets})
    try:
        command = Path(f"/proc/{gateway.proc.pid}/cmdline").read_text()
        assert "spark.hadoop.fs.s3a.endpoint=told" in command
        assert "s3cr3t" not in command
        conf = gateway.jvm.org.apache.spark.SparkConf()
        hadoop = gateway.jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(conf)
        for key, value in secrets.items():
            assert conf.get(key) == value
            assert hadoop.get(key.removeprefix("spark.hadoop.")) == value
    finally:
        session.close_jvm(gateway)
