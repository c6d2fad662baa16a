"""Values of a status."""

from __future__ import annotations

import shlex

from headrace.pipeline.status.finding import finding


def test_shell_text_in_a_name_is_one_word_of_each_command() -> None:
    found = finding("audit-missing", "orders; rm -rf ~", "1 message is missing")
    assert shlex.split(found.show)[-1] == "orders; rm -rf ~"
    assert "headrace audit accept 'orders; rm -rf ~' --reason" in found.repair
