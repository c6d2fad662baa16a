"""Checks a candidate (a new schema) against the earlier versions of its subject at a compatibility level."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.avro_schema import Schema
from headrace.compat.finding import (
    LEVELS,
    CompatibilityLevel,
    Direction,
    Finding,
    Report,
    VersionedSchema,
    parse_level,
)
from headrace.compat.incompatibility import Incompatibility
from headrace.compat.resolution import ComparisonBudget, check_reader_writer
from headrace.compat.rules import RULES, Explanation, RuleCase

__all__ = ["CompatibilityLevel", "VersionedSchema", "check_level", "parse_level"]


def check_level(
    candidate: Schema,
    history: Sequence[VersionedSchema],
    level: CompatibilityLevel,
    *,
    every_version: bool = False,
    budget: ComparisonBudget | None = None,
) -> Report:
    """Checks a candidate as a registry does on registration; returns the compared versions and the findings.

    Versions are compared from the newest to the oldest. The check ends at the first incompatible version, because older
    versions mostly repeat its problems.

    Args:
        candidate: the new schema.
        history: earlier versions, ascending.
        level: which pairs must be readable; a level that is not transitive compares only the last version.
        every_version: continue after an incompatible version.
        budget: limit for all comparisons of this check together; None for a new budget of `PAIRS_MAX` pairs of types.

    Raises:
        ComparisonTooLarge: the schemas are too large to compare.
    """
    budget = ComparisonBudget() if budget is None else budget
    rule = LEVELS[level]
    versions = list(reversed(history)) if rule.transitive else list(history[-1:])
    compared: list[VersionedSchema] = []
    findings: list[Finding] = []
    for earlier in versions if rule.directions else ():
        compared.append(earlier)
        for direction in rule.directions:
            findings.extend(compare(candidate, earlier, direction, budget))
        if findings and not every_version:
            break
    return Report(candidate, level, tuple(compared), tuple(findings))


def compare(
    candidate: Schema, earlier: VersionedSchema, direction: Direction, budget: ComparisonBudget | None = None
) -> list[Finding]:
    """Returns the findings of comparing the candidate (the new schema) with one earlier version in one direction.

    Args:
        budget: limit that this comparison shares with others; None for a new budget of `PAIRS_MAX` pairs of types.
    """
    if direction is Direction.BACKWARD:
        problems = check_reader_writer(candidate, earlier.schema, budget)
    else:
        problems = check_reader_writer(earlier.schema, candidate, budget)
    return [_finding(problem, earlier, direction) for problem in problems]


def _finding(problem: Incompatibility, earlier: VersionedSchema, direction: Direction) -> Finding:
    causes = tuple(_finding(cause, earlier, direction) for cause in problem.causes)
    rule = RULES[problem.type]
    case = RuleCase(problem, direction, earlier.name, tuple(Explanation(cause.sentence, cause.fix) for cause in causes))
    explanation = rule.explain(case)
    side = problem.reader_side if direction is Direction.BACKWARD else problem.writer_side
    return Finding(
        rule=problem.type,
        severity=rule.severity,
        direction=direction,
        version=earlier.version,
        version_name=earlier.name,
        position=causes[0].position if causes else side.position,
        sentence=explanation.sentence,
        fix=explanation.fix,
        incompatibility=problem,
        causes=causes,
    )
