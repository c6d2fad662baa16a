"""What `make demo-cluster` says when HiveServer2 does not answer."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pyhive.exc
import pytest
from py4j.protocol import Py4JError
from thrift.transport.TTransport import TTransportException

from checkout import ROOT
from headrace.pipeline.demo.run import DemoError

REFUSED = SimpleNamespace(status=SimpleNamespace(errorMessage="Error running query:\n  Tez is gone"))


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_cluster", ROOT / "tools" / "demo_cluster.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            pyhive.exc.OperationalError(REFUSED),
            "PyHive got no answer from HiveServer2: Error running query: Tez is gone",
        ),
        (TTransportException(message="closed"), "PyHive got no answer from HiveServer2: closed"),
        (Py4JError("no\nline"), "beeline's driver got no answer from HiveServer2: no line"),
    ],
)
def test_a_failure_of_hiveserver2_is_one_line_with_the_place_of_its_log(
    tool: ModuleType, error: Exception, said: str
) -> None:
    with pytest.raises(tool.CANNOT_RUN) as raised, tool.answering(Path("/demo/hive.log")):
        raise error
    assert isinstance(raised.value, DemoError)
    assert str(raised.value) == f"{said}; see /demo/hive.log"
