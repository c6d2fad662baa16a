"""JUnit XML in the dialect of Jenkins' schema: one test case per schema.

A failure is an incompatible schema; an error is a schema that could not be checked, or a baseline that could not be
read. The text of a schema's test case also shows suppressed problems, and that the schema is missing from the baseline.
"""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from headrace.compat.check_result import CheckedSchema, CompatCheckResult, Failure
from headrace.compat.formats.text import render_checked_schema

SUITE = "headrace compat"


def render_junit(result: CompatCheckResult) -> str:
    failed = sum(not checked.is_compatible for checked in result.checked)
    tests = len(result.checked) + len(result.failures)
    counts = f'tests="{tests}" failures="{failed}" errors="{len(result.failures)}"'
    cases = [_case(checked) for checked in result.checked] + [_error(failure) for failure in result.failures]
    notes = [f"    <system-out>{_text(chr(10).join(result.notes))}</system-out>"] if result.notes else []
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            f"<testsuites name={quoteattr(SUITE)} {counts}>",
            f'  <testsuite name={quoteattr(SUITE)} {counts} skipped="0">',
            *cases,
            *notes,
            "  </testsuite>",
            "</testsuites>",
            "",
        ]
    )


def _case(checked: CheckedSchema) -> str:
    head = f"    <testcase name={_attribute(checked.file)} classname={_attribute(checked.subject or SUITE)}"
    text = _text(render_checked_schema(checked, verbose=True))
    if checked.is_compatible:
        return f"{head}>\n      <system-out>{text}</system-out>\n    </testcase>"
    counting = [problem for problem in checked.problems if problem.is_blocking]
    message = _attribute(counting[0].sentence)
    kind = _attribute(counting[0].rule)
    return f"{head}>\n      <failure message={message} type={kind}>{text}</failure>\n    </testcase>"


def _error(failure: Failure) -> str:
    name, kind = _attribute(failure.file or "-"), _attribute(failure.kind.value)
    body = f"<error message={_attribute(failure.message)} type={kind}>{_text(failure.text())}</error>"
    return f"    <testcase name={name} classname={_attribute(SUITE)}>\n      {body}\n    </testcase>"


def _attribute(text: str) -> str:
    return quoteattr(_allowed(text))


def _text(text: str) -> str:
    return escape(_allowed(text))


def _allowed(text: str) -> str:
    """Returns a text in which a replacement character stands for each character that XML 1.0 cannot represent: control
    characters, surrogates and two noncharacters."""
    return "".join(char if _is_allowed(ord(char)) else "\N{REPLACEMENT CHARACTER}" for char in text)


def _is_allowed(code: int) -> bool:
    return code in (9, 10, 13) or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000
