"""Lints about changes since earlier versions. Avro itself accepts these changes, apart from a new key field without
default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from headrace.avro_schema import Field, Fixed, LogicalType, NamedType, Primitive, Record, Type, Union
from headrace.compat.describe import (
    describe_field,
    describe_type,
    join_words,
    schema_fragment,
    type_fragment,
    type_kind,
)
from headrace.compat.finding import VersionedSchema
from headrace.compat.lints.located_types import NodePair, earlier_field, node_pairs
from headrace.compat.lints.model import LintFinding, LintInput

NodePairCheck = Callable[[NodePair, VersionedSchema], Iterator[LintFinding]]


def for_each_pair(check: NodePairCheck) -> Callable[[LintInput], Iterator[LintFinding]]:
    """Returns a lint that calls `check` with each type of the candidate (the new schema) and the matching type of each
    earlier version, and yields all findings of these calls."""

    def lint(linted: LintInput) -> Iterator[LintFinding]:
        for earlier in linted.earlier:
            if earlier.schema is not linted.candidate:
                for pair in node_pairs(linted.candidate, earlier.schema):
                    yield from check(pair, earlier)

    return lint


def logical_type(pair: NodePair, earlier: VersionedSchema) -> Iterator[LintFinding]:
    new, old = _logical(pair.new), _logical(pair.old)
    if not _both_may_be_logical(pair) or (new and new.name) == (old and old.name):
        return
    words = f"{new.name if new else 'no logical type'} here but {old.name if old else 'none'} in {earlier.name}"
    sentence = f"{describe_field(pair.path)} has {words}, so the same bytes have another meaning"
    advice = f'keep "logicalType": "{old.name}"' if old else "remove the logical type"
    yield _finding(pair, earlier, sentence, f"{advice}, or add a new field for the new meaning")


def decimal(pair: NodePair, earlier: VersionedSchema) -> Iterator[LintFinding]:
    new, old = _logical(pair.new), _logical(pair.old)
    if new is None or old is None or new.name != "decimal" or old.name != "decimal":
        return
    if new.scale != old.scale:
        sentence = (
            f"{describe_field(pair.path)} is a decimal of scale {new.scale} here but {old.scale} in {earlier.name}, "
            "so numbers written with one scale are read wrong by powers of ten; Avro's own check ignores the scale"
        )
        yield _finding(pair, earlier, sentence, f'keep "scale": {old.scale}, or add a new field')
    elif (new.precision or 0) < (old.precision or 0):
        sentence = (
            f"{describe_field(pair.path)} has {new.precision} digits here but {old.precision} in {earlier.name}, "
            "so values of that version may not fit"
        )
        yield _finding(pair, earlier, sentence, f'keep "precision": {old.precision}, or a larger one')


def namespace(pair: NodePair, earlier: VersionedSchema) -> Iterator[LintFinding]:
    new, old = pair.new, pair.old
    if not isinstance(new, NamedType) or not isinstance(old, NamedType):
        return
    if new.name.name == old.name.name and new.name != old.name and old.name not in new.aliases:
        sentence = (
            f"{type_kind(new)} {new.name.full} is {old.name.full} in {earlier.name}: Avro Java compares short "
            "names, but other readers and generated classes compare full names"
        )
        fix = f'keep the namespace "{old.name.namespace}", or add "aliases": ["{old.name.full}"]'
        yield LintFinding(sentence, fix, new.position, pair.path, new.name.full, old.name.full, earlier)


def union_order(pair: NodePair, earlier: VersionedSchema) -> Iterator[LintFinding]:
    if not isinstance(pair.new, Union) or not isinstance(pair.old, Union):
        return
    new, old = [_branch(node) for node in pair.new.branches], [_branch(node) for node in pair.old.branches]
    common_new = [name for name in new if name in old]
    common_old = [name for name in old if name in new]
    if common_new != common_old:
        sentence = (
            f"{describe_field(pair.path)} has its branches in another order ({join_words(new)}) than {earlier.name} "
            f"({join_words(old)}); some readers and defaults depend on the order"
        )
        yield _finding(pair, earlier, sentence, f"keep the order {join_words(common_old)}; add new branches at the end")


def field_order(pair: NodePair, earlier: VersionedSchema) -> Iterator[LintFinding]:
    new, old = pair.new, pair.old
    if not isinstance(new, Record) or not isinstance(old, Record):
        return
    common = [(field, old_field) for field in new.fields if (old_field := earlier_field(field, old)) is not None]
    order = {old_field.name: index for index, old_field in enumerate(old.fields)}
    for (_, previous), (field, old_field) in pairwise(common):
        if order[old_field.name] < order[previous.name]:
            sentence = (
                f'field "{field.name}" comes after "{previous.name}" here but before it in {earlier.name}, so tables, '
                "CSV and other readers that use positions confuse the two fields"
            )
            fix = f"keep the order {join_words([field.name for field in old.fields])}; add new fields at the end"
            yield LintFinding(sentence, fix, field.position, (*pair.path, field.name), earlier=earlier)
            return


def alias_chain(pair: NodePair, earlier: VersionedSchema) -> Iterator[LintFinding]:
    new, old = pair.new, pair.old
    if isinstance(new, NamedType) and isinstance(old, NamedType):
        missing = [alias.full for alias in old.aliases if alias not in (new.name, *new.aliases)]
        if missing:
            sentence = _chain_sentence(f"{type_kind(new)} {new.name.name}", missing, earlier)
            fix = _alias_fix([*(alias.full for alias in new.aliases), *missing])
            yield LintFinding(sentence, fix, new.position, pair.path, earlier=earlier)
    if isinstance(new, Record) and isinstance(old, Record):
        for field in new.fields:
            yield from _field_chain(field, new, old, pair, earlier)


def _field_chain(
    field: Field, new: Record, old: Record, pair: NodePair, earlier: VersionedSchema
) -> Iterator[LintFinding]:
    old_field = earlier_field(field, old)
    used_names = {name for other in new.fields if other is not field for name in (other.name, *other.aliases)}
    missing = (
        [alias for alias in old_field.aliases if alias not in (field.name, *field.aliases, *used_names)]
        if old_field
        else []
    )
    if missing:
        sentence = _chain_sentence(f'field "{field.name}"', missing, earlier)
        fix = _alias_fix([*field.aliases, *missing])
        yield LintFinding(
            sentence, fix, field.position, (*pair.path, field.name), schema_fragment(field), earlier=earlier
        )


def _chain_sentence(owner: str, missing: list[str], earlier: VersionedSchema) -> str:
    names = join_words([f'"{name}"' for name in missing])
    return (
        f"{owner} had {'the alias' if len(missing) == 1 else 'the aliases'} {names} in {earlier.name} but not here, so "
        "readers lose the value in data that has the old name: aliases are not followed across versions"
    )


def _alias_fix(aliases: list[str]) -> str:
    return f'keep every earlier name: "aliases": [{", ".join(f"{chr(34)}{alias}{chr(34)}" for alias in aliases)}]'


def key_default(linted: LintInput) -> Iterator[LintFinding]:
    if linted.subject.endswith("-key"):
        yield from for_each_pair(_key_field)(linted)


def _key_field(pair: NodePair, earlier: VersionedSchema) -> Iterator[LintFinding]:
    new, old = pair.new, pair.old
    if not isinstance(new, Record) or not isinstance(old, Record):
        return
    for field in new.fields:
        if earlier_field(field, old) is None:
            sentence = (
                f'field "{field.name}" is new in a key, so existing keys change: records change '
                "partitions, joins find no match and compaction retains both versions"
            )
            fix = "add it to the value, or use a new topic for the new key"
            yield LintFinding(
                sentence, fix, field.position, (*pair.path, field.name), schema_fragment(field), earlier=earlier
            )


def _logical(node: Type) -> LogicalType | None:
    return node.logical if isinstance(node, Primitive | Fixed) else None


def _both_may_be_logical(pair: NodePair) -> bool:
    return isinstance(pair.new, Primitive | Fixed) and isinstance(pair.old, Primitive | Fixed)


def _branch(node: Type) -> str:
    return node.name.name if not isinstance(node, Primitive) and hasattr(node, "name") else describe_type(node)


def _finding(pair: NodePair, earlier: VersionedSchema, sentence: str, fix: str) -> LintFinding:
    return LintFinding(
        sentence, fix, pair.position, pair.path, type_fragment(pair.new), type_fragment(pair.old), earlier
    )
