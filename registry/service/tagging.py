"""Creates a new version from an existing one by changing its tags, metadata and rules."""

from __future__ import annotations

from headrace.registry.domain import LATEST, SchemaRequest, StoredVersion, TagChange
from headrace.registry.errors import VersionNotFound
from headrace.registry.metadata import with_version_property
from headrace.registry.rules import RuleSet, check_rule_set, merged_rules, rules_without
from headrace.registry.service.compatibility import ComparisonOffload
from headrace.registry.service.lookup import Lookup
from headrace.registry.service.registration import Registration, RegistrationResult


class Tagging:
    def __init__(self, lookup: Lookup, registration: Registration) -> None:
        self._lookup = lookup
        self._registration = registration

    def change(
        self, subject: str, version: int, change: TagChange, *, offload: ComparisonOffload | None = None
    ) -> RegistrationResult:
        """Registers a copy of a version with other tags, metadata or rules. The metadata of the copy contains the
        version number of the copy.

        Args:
            subject: the subject; an alias is resolved.
            version: the version to copy.
            change: the tags, metadata and rules to change.
            offload: defers a slow comparison, or has the result of a deferred one; None runs every comparison here.

        Raises:
            ComparisonDeferred: the comparison is slow. The caller runs `Compatibility.run_comparison` and then calls
                `change` again with its result.
            SubjectNotFound: the subject has no version.
            VersionNotFound: the subject exists but has no such version.
            InvalidRuleSet: the rules are invalid.
            InvalidSchema: a record or field does not exist, or the requested number is not that of the next version.
            IncompatibleSchema: the subject's compatibility level forbids the new version.
            OperationNotPermitted: the subject's mode forbids it, or the context has no id left.
            StoreError: the database failed, or there were too many concurrent changes.
        """
        if change.rule_set is not None:
            check_rule_set(change.rule_set)
        # Only reads search other contexts; the new version belongs to the subject of the path.
        old = self._lookup.version(subject, version, deleted=False, other_contexts=False)
        content = old.schema.content
        metadata = content.metadata if change.metadata is None else change.metadata
        request = SchemaRequest(
            text=content.text,
            references=content.references,
            # A placeholder; the registration writes the actual number.
            metadata=with_version_property(metadata, change.new_version or 0, always=True),
            rule_set=self._rules(old.subject, change),
            version=change.new_version or 0,
            tags_to_add=change.tags_to_add,
            tags_to_remove=change.tags_to_remove,
        )
        return self._registration.register(old.subject, request, normalize=False, offload=offload)

    def _rules(self, subject: str, change: TagChange) -> RuleSet | None:
        if change.rules_to_merge is None and change.rules_to_remove is None:
            return change.rule_set
        before = self._version_before(subject, change.new_version)
        rules = None if before is None else before.schema.content.rule_set
        rules = merged_rules(rules, change.rules_to_merge)
        return None if rules is None else rules_without(rules, change.rules_to_remove or ())

    def _version_before(self, subject: str, new_version: int | None) -> StoredVersion | None:
        number = LATEST if new_version is None or new_version <= 1 else new_version - 1
        try:
            return self._lookup.version(subject, number, deleted=False, other_contexts=False)
        except VersionNotFound:
            return None
