"""Which version of a subject already holds what a request brings, and what a request leaves to the version before."""

from __future__ import annotations

from dataclasses import replace

from headrace.registry.domain import ConfigEntry, SchemaContent, SchemaReference, SchemaRequest, StoredVersion
from headrace.registry.errors import InvalidSchema
from headrace.registry.metadata import merged_metadata, satisfies_request, with_version_property
from headrace.registry.rules import merged_rules
from headrace.registry.service.schema_parser import Candidate, SchemaParser
from headrace.registry.storage.cache import SubjectView
from headrace.registry.storage.repository import Repository


def find_matching_version(
    repository: Repository,
    parser: SchemaParser,
    subject: str,
    view: SubjectView,
    candidate: Candidate,
    *,
    version: int | None = None,
    deleted: bool = False,
) -> StoredVersion | None:
    """The version of a subject that holds the very candidate, else the newest that says the same.

    Args:
        repository: where the schemas are.
        texts: reads them.
        subject: the subject.
        view: its versions.
        candidate: the schema.
        version: with `LATEST` only the newest version counts, with a number only that one; None and 0 leave it open.
        deleted: whether softly deleted versions count too.
    """
    alike = [
        entry for entry in view.entries if entry.lookup_key == candidate.lookup_key and (deleted or not entry.deleted)
    ]
    if version:
        wanted = view.entry(version, deleted=deleted)
        alike = [entry for entry in alike if entry is wanted]
    if not alike:
        return None
    chosen = repository.load_entries(subject, tuple(reversed(alike)))
    same = (item for item in chosen if item.schema.content == candidate.content)
    return next(same, None) or next(
        (
            item
            for item in chosen
            if _has_equivalent_content(candidate.content, item)
            and parser.is_equivalent(repository, candidate, item.schema)
        ),
        None,
    )


def complete_request(
    request: SchemaRequest, config: ConfigEntry, latest: StoredVersion | None, version: int | None
) -> SchemaRequest:
    """A request with what it leaves out: the schema, metadata and rules of the latest version, and the configured ones.

    Args:
        version: the number that the schema will have, which metadata that tells it must tell; None keeps metadata.

    Raises:
        InvalidSchema: there is no schema, and none to take.
    """
    content = None if latest is None else latest.schema.content
    if not has_schema_text(request):
        if content is None:
            raise InvalidSchema("Empty schema")
        request = replace(request, text=content.text, references=content.references)
    metadata = request.metadata if request.metadata is not None or content is None else content.metadata
    rule_set = request.rule_set if request.rule_set is not None or content is None else content.rule_set
    metadata = merged_metadata(config.default_metadata, metadata, config.override_metadata)
    if version is not None:
        metadata = with_version_property(metadata, version, wanted=request.version not in (None, 0))
    rule_set = merged_rules(config.default_rule_set, rule_set, config.override_rule_set)
    return replace(request, metadata=metadata, rule_set=rule_set)


def has_schema_text(request: SchemaRequest) -> bool:
    return bool(request.text and request.text.strip())


def adds_metadata_or_rules(config: ConfigEntry) -> bool:
    """Whether a configuration gives versions metadata or rules, so that a request does not show what it will store."""
    added = (config.default_metadata, config.override_metadata, config.default_rule_set, config.override_rule_set)
    return any(value is not None for value in added)


def _has_equivalent_content(wanted: SchemaContent, stored: StoredVersion) -> bool:
    content = stored.schema.content
    return _matches_references(wanted.references, content.references) and satisfies_request(
        (wanted.metadata, wanted.rule_set), (content.metadata, content.rule_set), stored.version
    )


def _matches_references(wanted: tuple[SchemaReference, ...], stored: tuple[SchemaReference, ...]) -> bool:
    """A schema in one piece finds the one that was split, and not the other way round."""
    return not wanted or sorted(wanted) == sorted(stored)
