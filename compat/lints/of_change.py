"""Lints that look at what changed since earlier versions, where Avro itself sees nothing wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from headrace.avro_schema import Field, Fixed, LogicalType, NamedType, Primitive, Record, Type, Union
from headrace.compat.finding import VersionedSchema
from headrace.compat.lints.model import Linted, Remark
from headrace.compat.lints.places import Pair, earlier_field, pairs
from headrace.compat.words import field_words, fragment, kind_word, listed, type_fragment, type_words

PairCheck = Callable[[Pair, VersionedSchema], Iterator[Remark]]


def each_pair(check: PairCheck) -> Callable[[Linted], Iterator[Remark]]:
    """The lint that looks at each place of the candidate beside the same place of each earlier version."""

    def lint(linted: Linted) -> Iterator[Remark]:
        for earlier in linted.earlier:
            if earlier.schema is not linted.candidate:
                for pair in pairs(linted.candidate, earlier.schema):
                    yield from check(pair, earlier)

    return lint


def logical_type(pair: Pair, earlier: VersionedSchema) -> Iterator[Remark]:
    here, there = _logical(pair.here), _logical(pair.there)
    if not _both_may_be_logical(pair) or (here and here.name) == (there and there.name):
        return
    words = f"{here.name if here else 'no logical type'} here but {there.name if there else 'none'} in {earlier.name}"
    sentence = f"{field_words(pair.path)} has {words}: the same bytes mean something else"
    keep = f'keep "logicalType": "{there.name}"' if there else "leave the logical type out"
    yield _remark(pair, earlier, sentence, f"{keep}, or add a new field for the new meaning")


def decimal(pair: Pair, earlier: VersionedSchema) -> Iterator[Remark]:
    here, there = _logical(pair.here), _logical(pair.there)
    if here is None or there is None or here.name != "decimal" or there.name != "decimal":
        return
    if here.scale != there.scale:
        sentence = (
            f"{field_words(pair.path)} is a decimal of scale {here.scale} here but {there.scale} in {earlier.name}, "
            "so that what was written with one is read as another number, wrong by powers of ten; Avro's own check "
            "does not look at it"
        )
        yield _remark(pair, earlier, sentence, f'keep "scale": {there.scale}, or add a new field')
    elif (here.precision or 0) < (there.precision or 0):
        sentence = (
            f"{field_words(pair.path)} has {here.precision} digits here but {there.precision} in {earlier.name}, "
            "whose values may not fit"
        )
        yield _remark(pair, earlier, sentence, f'keep "precision": {there.precision}, or a larger one')


def namespace(pair: Pair, earlier: VersionedSchema) -> Iterator[Remark]:
    here, there = pair.here, pair.there
    if not isinstance(here, NamedType) or not isinstance(there, NamedType):
        return
    if here.name.name == there.name.name and here.name != there.name and there.name not in here.aliases:
        sentence = (
            f"{kind_word(here)} {here.name.full} is {there.name.full} in {earlier.name}: Avro Java reads it by its "
            "short name, other readers and generated classes do not"
        )
        fix = f'keep the namespace "{there.name.namespace}", or add "aliases": ["{there.name.full}"]'
        yield Remark(sentence, fix, here.position, pair.path, here.name.full, there.name.full, earlier)


def union_order(pair: Pair, earlier: VersionedSchema) -> Iterator[Remark]:
    if not isinstance(pair.here, Union) or not isinstance(pair.there, Union):
        return
    here, there = [_branch(node) for node in pair.here.branches], [_branch(node) for node in pair.there.branches]
    kept_here = [name for name in here if name in there]
    kept_there = [name for name in there if name in here]
    if kept_here != kept_there:
        sentence = (
            f"{field_words(pair.path)} has its branches in another order than {earlier.name} "
            f"({listed(here)}, before {listed(there)}), by which some readers number them and defaults are judged"
        )
        yield _remark(pair, earlier, sentence, f"keep the order {listed(kept_there)}; add new branches at the end")


def field_order(pair: Pair, earlier: VersionedSchema) -> Iterator[Remark]:
    here, there = pair.here, pair.there
    if not isinstance(here, Record) or not isinstance(there, Record):
        return
    kept = [(field, known) for field in here.fields if (known := earlier_field(field, there)) is not None]
    order = {known.name: index for index, known in enumerate(there.fields)}
    for (_, above), (field, known) in pairwise(kept):
        if order[known.name] < order[above.name]:
            sentence = (
                f'field "{field.name}" stood before "{above.name}" in {earlier.name}: what takes fields by place, '
                "such as tables and CSV, takes one for the other"
            )
            fix = f"keep the order {listed([field.name for field in there.fields])}; add new fields at the end"
            yield Remark(sentence, fix, field.position, (*pair.path, field.name), earlier=earlier)
            return


def alias_chain(pair: Pair, earlier: VersionedSchema) -> Iterator[Remark]:
    here, there = pair.here, pair.there
    if isinstance(here, NamedType) and isinstance(there, NamedType):
        lost = [alias.full for alias in there.aliases if alias not in (here.name, *here.aliases)]
        if lost:
            sentence = _chain_sentence(f"{kind_word(here)} {here.name.name}", lost, earlier)
            fix = _alias_fix([*(alias.full for alias in here.aliases), *lost])
            yield Remark(sentence, fix, here.position, pair.path, earlier=earlier)
    if isinstance(here, Record) and isinstance(there, Record):
        for field in here.fields:
            yield from _field_chain(field, here, there, pair, earlier)


def _field_chain(field: Field, here: Record, there: Record, pair: Pair, earlier: VersionedSchema) -> Iterator[Remark]:
    known = earlier_field(field, there)
    taken = {name for other in here.fields if other is not field for name in (other.name, *other.aliases)}
    lost = [alias for alias in known.aliases if alias not in (field.name, *field.aliases, *taken)] if known else []
    if lost:
        sentence = _chain_sentence(f'field "{field.name}"', lost, earlier)
        fix = _alias_fix([*field.aliases, *lost])
        yield Remark(sentence, fix, field.position, (*pair.path, field.name), fragment(field), earlier=earlier)


def _chain_sentence(what: str, lost: list[str], earlier: VersionedSchema) -> str:
    names = listed([f'"{name}"' for name in lost])
    return (
        f"{what} had {'the alias' if len(lost) == 1 else 'the aliases'} {names} in {earlier.name} and has not here, so "
        "that data of still earlier versions loses it: aliases are not followed from version to version"
    )


def _alias_fix(aliases: list[str]) -> str:
    return f'keep every earlier name: "aliases": [{", ".join(f"{chr(34)}{alias}{chr(34)}" for alias in aliases)}]'


def key_default(linted: Linted) -> Iterator[Remark]:
    if linted.subject.endswith("-key"):
        yield from each_pair(_key_field)(linted)


def _key_field(pair: Pair, earlier: VersionedSchema) -> Iterator[Remark]:
    here, there = pair.here, pair.there
    if not isinstance(here, Record) or not isinstance(there, Record):
        return
    for field in here.fields:
        if earlier_field(field, there) is None:
            sentence = (
                f'field "{field.name}" is new in a key, so that what had one key has another: records change '
                "partitions, joins miss and compaction keeps both"
            )
            fix = "put it into the value, or use a new topic for the new key"
            yield Remark(sentence, fix, field.position, (*pair.path, field.name), fragment(field), earlier=earlier)


def _logical(node: Type) -> LogicalType | None:
    return node.logical if isinstance(node, Primitive | Fixed) else None


def _both_may_be_logical(pair: Pair) -> bool:
    return isinstance(pair.here, Primitive | Fixed) and isinstance(pair.there, Primitive | Fixed)


def _branch(node: Type) -> str:
    return node.name.name if not isinstance(node, Primitive) and hasattr(node, "name") else type_words(node)


def _remark(pair: Pair, earlier: VersionedSchema, sentence: str, fix: str) -> Remark:
    return Remark(sentence, fix, pair.position, pair.path, type_fragment(pair.here), type_fragment(pair.there), earlier)
