"""The Spark properties of a session, by where its tasks run."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.hive_ddl.executors.session import session_properties

SOCKETS = "spark.python.unix.domain.socket.enabled"


@pytest.mark.parametrize(
    ("master", "expected"), [("local[2]", "true"), ("local-cluster[1,1,1024]", "true"), ("yarn", None)]
)
def test_workers_of_a_cluster_have_no_sockets_with_names(master: str, expected: str | None, tmp_path: Path) -> None:
    """Whose folders may be called longer than a socket's name can be."""
    properties = session_properties(
        app_name="t", master=master, metastore_uri=None, data_dir=tmp_path, warehouse_uri="file:///w"
    )
    assert properties.get(SOCKETS) == expected
    assert ("spark.driver.host" in properties) == (expected is not None)
