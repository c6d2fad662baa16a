"""The access log of the demo: what is in the files after rotations."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from pathlib import Path

from headrace.pipeline.demo.access_log import WebAccessLog


def test_rotated_files_have_all_lines_in_order(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = WebAccessLog(path)
    for _ in range(3):
        log.write(100)
        log.rotate(3)
    log.write(1)
    log.close()
    names = ["access.log.3.gz", "access.log.2.gz", "access.log.1", "access.log"]
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(names)
    lines = [line for name in names for line in content(tmp_path / name).decode().splitlines()]
    assert [line.rsplit("=", 1)[1] for line in lines] == [f"{number:06d}" for number in range(1, log.written + 1)]
    found = [re.search(r'"GET (\S+) HTTP/1.1" (\d+) ', line) for line in lines]
    assert Counter((one[1], int(one[2])) for one in found if one is not None) == log.pages


def content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
