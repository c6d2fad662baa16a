"""Counts phrases that make prose hard to read, per 10,000 words of each package, and fails above a limit.

    python tools/plain_words.py                 all packages, with their limits; the exit code is 1 above a limit
    python tools/plain_words.py registry docs   only these paths, without limits
    python tools/plain_words.py --most 60       prints up to 60 passages, the densest first
    python tools/plain_words.py --quiet         prints nothing below the limits, for `make check`

Prose is docstrings, comments, messages of five words or more, and Markdown outside of code. Each habit is a pattern; a
hit is a place to look, not a verdict. docs/glossary.md has the terms to use instead.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

HABITS = {
    # A clause in place of a noun: "what is gone is dropped".
    "headless": r"\b(?:what(?! (?:to do|happens|follows)\b)|who|whom|whose|of which|by which|of what|that which|"
    r"those (?:that|who|of|which)|such as are)\b",
    # Code that speaks: "the broker is asked", "it says why".
    "talking": r"\b(?:asks?|asked|asking|tells?|told|telling|hears?|heard|is said|are said|say so|says so|"
    r"answers? (?:for|to|of)|be answered)\b",
    "everyman": r"\b(?:whoever|whatever|nobody|somebody|anybody|everybody|no one|people)\b",
    # A word of the house in place of the term of the field.
    "avoidance": r"\b(?:mend(?:s|ed|ing)?|anew|in vain|gone|kept|forced to disk|unforced|put aside|set aside|taken up|"
    r"take[ns]? apart|in the midst|in turns|likewise|a look|looked after|looks? after|looked at|have a look|"
    r"beside(?! the point)|folders?|lets? go|by itself|of its own|by hand|is none|are none|there is none|stands? in)\b",
    # A fragment that needs the code above it: "Of one connection."
    "orphan": r"(?:^|[.:;] )(?:Of|By|With|From|To|For|At|In) (?:which|what|these|those|them|it|that|one|each|whom|a)\b|"
    r"\b(?:the former|the latter|the others?|that one|such a one)\b",
}
RULES = {name: re.compile(pattern, 0 if name == "orphan" else re.I) for name, pattern in HABITS.items()}
WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
MESSAGE_WORDS_MIN, COMMENT_WORDS_MIN = 5, 3

PER_WORDS = 10_000
TESTS = "tests"
LIMIT, LIMIT_OF_TESTS, LIMIT_OF_PRODUCT = 40, 60, 25
"""Hits per 10,000 words: of a package or directory, of `tests`, and of everything but `tests` together."""


class Passage(NamedTuple):
    """A line of prose, and the hits of the patterns in it.

    Attributes:
        where: path and line number.
        hits: the name of the habit, once for each hit.
    """

    where: str
    text: str
    words: int
    hits: tuple[str, ...]

    @property
    def density(self) -> float:
        return len(self.hits) / max(8, self.words)


def passages(path: Path) -> Iterator[Passage]:
    """Yields the prose of a file, line by line."""
    for line, text in _prose(path.suffix or path.name, path.read_text(encoding="utf-8")):
        found = tuple(name for name, rule in RULES.items() for _ in rule.finditer(text))
        yield Passage(f"{path.relative_to(ROOT)}:{line}", text.strip(), len(WORD.findall(text)), found)


def _prose(kind: str, text: str) -> Iterator[tuple[int, str]]:
    if kind == ".md":
        yield from _markdown(text)
    elif kind == ".py":
        yield from _python(text)
    elif kind in (".c", ".h"):
        for match in re.finditer(r"/\*.*?\*/|//[^\n]*", text, re.DOTALL):
            for offset, line in enumerate(match.group().splitlines()):
                yield text.count("\n", 0, match.start()) + 1 + offset, line
    elif kind in (".sh", ".toml", ".yaml", ".yml", "Makefile"):
        for number, line in enumerate(text.splitlines(), 1):
            if "#" in line:
                yield number, line.split("#", 1)[1]


def _markdown(text: str) -> Iterator[tuple[int, str]]:
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and line.strip():
            yield number, _without_code(line)


def _python(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        if " " in node.value and len(WORD.findall(node.value)) >= MESSAGE_WORDS_MIN:
            for offset, line in enumerate(node.value.splitlines()):
                if line.strip():
                    yield node.lineno + offset, _without_code(line)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and len(WORD.findall(token.string)) >= COMMENT_WORDS_MIN:
            yield token.start[0], token.string.lstrip("# ")


def _without_code(line: str) -> str:
    return re.sub(r"`[^`]*`", "CODE", line)


def tracked(paths: list[str]) -> list[Path]:
    command = ["git", "ls-files", "--", *paths]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    # This file quotes the phrases.
    return [ROOT / name for name in completed.stdout.splitlines() if name != "tools/plain_words.py"]


def group_of(passage: Passage) -> str:
    """Returns the group in which a passage is counted: the top-level directory of its file, or "(top)" for files that
    are in none."""
    top, _, rest = passage.where.partition("/")
    return top if rest else "(top)"


def rate(hits: int, words: int) -> float:
    return PER_WORDS * hits / words if words else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="files or directories (default: all, with limits)")
    parser.add_argument("--most", type=int, default=10, help="how many passages to print (default: 10)")
    parser.add_argument("--quiet", action="store_true", help="print nothing below the limits")
    args = parser.parse_args()
    words: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    found: list[Passage] = []
    for path in tracked(args.paths):
        if not path.is_file():
            continue
        try:
            for passage in passages(path):
                words[group_of(passage)] += passage.words
                hits[group_of(passage)] += len(passage.hits)
                if passage.hits:
                    found.append(passage)
        except UnicodeDecodeError:
            continue
    limits = {group: LIMIT_OF_TESTS if group == TESTS else LIMIT for group in words}
    rates = {group: rate(hits[group], words[group]) for group in words}
    product_words = words.total() - words[TESTS]
    product = rate(hits.total() - hits[TESTS], product_words)
    is_over = not args.paths and (product > LIMIT_OF_PRODUCT or any(rates[group] > limits[group] for group in words))
    if args.quiet and not is_over:
        return 0
    for group in sorted(words, key=lambda one: -rates[one]):
        mark = f" above the limit of {limits[group]}" if not args.paths and rates[group] > limits[group] else ""
        print(f"{group:14} {words[group]:8,} words {rates[group]:6.0f} hits per 10,000{mark}")
    print(f"{'all but tests':14} {product_words:8,} words {product:6.0f} hits per 10,000")
    if is_over or args.paths:
        for passage in sorted(found, key=lambda one: -one.density)[: args.most]:
            print(f"{passage.where}: {passage.text[:150]}")
    return 1 if is_over else 0


if __name__ == "__main__":
    sys.exit(main())
