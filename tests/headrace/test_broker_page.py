"""The limits in docs/broker.md equal those of the code."""

from __future__ import annotations

import re

from headrace.broker.handlers.fetch import COPIED_BYTES_MAX, RESPONSE_BYTES_MAX
from support.pages import page

MIB = 1024 * 1024


def test_page_states_the_limit_of_a_fetch_response() -> None:
    (row,) = re.findall(r"^\| (.*) in one fetch response, (.*?) \|", page("docs/broker.md"), re.MULTILINE)
    stated = [int(number) for number in re.findall(r"(\d+) MiB", " ".join(row))]
    assert stated == [RESPONSE_BYTES_MAX // MIB, COPIED_BYTES_MAX // MIB]
