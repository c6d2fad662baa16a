"""Finds the version that already has a request's schema, and completes requests from the latest version."""

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
    """The version of a subject with exactly the candidate's content, else the newest version with another spelling of
    the schema and with the candidate's metadata and rules. None without such a version.

    Args:
        repository: contains the schemas.
        parser: parses them.
        subject: the subject.
        view: the subject's versions.
        candidate: the schema to find.
        version: only this version, or the newest for `LATEST`; None and 0 search all.
        deleted: includes soft-deleted versions.
    """
    candidates = [
        entry for entry in view.entries if entry.lookup_key == candidate.lookup_key and (deleted or not entry.deleted)
    ]
    if version:
        selected = view.entry(version, deleted=deleted)
        candidates = [entry for entry in candidates if entry is selected]
    if not candidates:
        return None
    chosen = repository.load_entries(subject, tuple(reversed(candidates)))
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
    """Fills in a request's missing schema, metadata and rules from the latest version and the configuration.

    Args:
        request: the request.
        config: the subject's effective configuration.
        latest: the subject's latest version; None if it has none.
        version: the number of the new version. It is written into metadata that contain a version number, or into any
            metadata if the request has a version; None leaves the metadata unchanged.

    Raises:
        InvalidSchema: the request has no schema and there is no latest version.
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
        metadata = with_version_property(metadata, version, always=request.version not in (None, 0))
    rule_set = merged_rules(config.default_rule_set, rule_set, config.override_rule_set)
    return replace(request, metadata=metadata, rule_set=rule_set)


def has_schema_text(request: SchemaRequest) -> bool:
    return bool(request.text and request.text.strip())


def adds_metadata_or_rules(config: ConfigEntry) -> bool:
    """Whether the configuration adds metadata or rules, so that the stored content differs from the request's."""
    added = (config.default_metadata, config.override_metadata, config.default_rule_set, config.override_rule_set)
    return any(value is not None for value in added)


def _has_equivalent_content(requested: SchemaContent, stored: StoredVersion) -> bool:
    content = stored.schema.content
    return _matches_references(requested.references, content.references) and satisfies_request(
        (requested.metadata, requested.rule_set), (content.metadata, content.rule_set), stored.version
    )


def _matches_references(requested: tuple[SchemaReference, ...], stored: tuple[SchemaReference, ...]) -> bool:
    """Whether a requested and a stored schema may be equal, as far as their lists of references show.

    They may be equal if the lists have the same references in any order. A request without references may also equal a
    stored schema that is split into several by references; the reverse is not allowed.
    """
    return not requested or sorted(requested) == sorted(stored)
