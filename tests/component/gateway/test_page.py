"""The examples of docs/gateway.md, run by curl."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from support.checkout import ROOT
from support.running_service import Service

pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]
EXAMPLE = re.compile(r"```sh\n(curl .*?)```\n\n```json\n(.*?)```", re.DOTALL)


def test_examples_have_the_responses_of_the_page(gateway_service: Service) -> None:
    examples = EXAMPLE.findall((ROOT / "docs" / "gateway.md").read_text(encoding="utf-8"))
    assert len(examples) == 10
    transaction_id = ""
    for command, response in examples:
        local = command.replace("http://127.0.0.1:8082", gateway_service.addresses["gateway"])
        environment = {**os.environ, "ID": transaction_id}
        done = subprocess.run(["bash", "-c", local], capture_output=True, text=True, check=True, env=environment)
        pattern = re.escape(response.strip()).replace("…", ".+?")
        assert re.fullmatch(pattern, done.stdout.strip().replace("\r", "")), (command, done.stdout)
        if found := re.match(r'{"transaction_id":"(.+?)"', done.stdout):
            transaction_id = found[1]
