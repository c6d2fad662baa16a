"""Registers schemas, with checks in the order of the Confluent Schema Registry.

A registration reads the subject and decides, outside any write transaction, which version it adds. The version is
written if the subject is unchanged since then; otherwise the registration decides again. Parsing and compatibility
checks therefore hold no lock of the database. Of several registrations that run concurrently under one subject, one
succeeds. The others decide again, and then see its version. Within a process registrations of a subject are serialized
by a lock. After repeated conflicts with other processes, registrations of a subject are serialized by a lock of the
database: each one decides, checks and writes in one write transaction while it has the lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from headrace.registry.domain import (
    LATEST,
    SCHEMA_ID_MAX,
    VERSION_MAX,
    Mode,
    SchemaContent,
    SchemaId,
    SchemaRequest,
    StoredSchema,
    StoredVersion,
)
from headrace.registry.errors import (
    IncompatibleSchema,
    InvalidSchema,
    OperationNotPermitted,
    SchemaIdMismatch,
    StoreError,
)
from headrace.registry.names import context_of, quoted_for_log, resolve_in_context
from headrace.registry.rules import check_rule_set
from headrace.registry.service.compatibility import ComparisonOffload, Compatibility
from headrace.registry.service.configuration import Configuration, SubjectSettings
from headrace.registry.service.matching import (
    adds_metadata_or_rules,
    complete_request,
    find_matching_version,
    has_schema_text,
)
from headrace.registry.service.modes import not_permitted, refuse_readonly
from headrace.registry.service.schema_parser import Candidate, SchemaParser
from headrace.registry.storage.cache import LruCache, SubjectView
from headrace.registry.storage.database import Database
from headrace.registry.storage.repository import ContentExists, ExpectedRevisions, IdRequest, Repository, WriteConflict

logger = logging.getLogger(__name__)

REGISTRATION_ATTEMPTS_MAX = 200
"""Attempts per registration. An attempt fails when another transaction has changed data that it was decided on, such as
the subject or a configuration, or has registered the same schema."""

LOCK_STRIPES = 8192  # subjects hash onto these; two subjects with the same lock are rarely written concurrently
KNOWN_CONTENTS_MAX = 20_000  # contents that are known to have an id; some 5 MB
SERIALIZED_ATTEMPTS = 20  # attempts under the database's lock after a registration has conflicted twice


@dataclass(frozen=True, slots=True)
class _RegistrationPlan:
    """The decision to add a version, which is not written yet.

    `imported_id` is the id that an import requires. `known` is the schema if its context already has it, as far as this
    process knows; otherwise the schema gets the imposed id or a new one. `revives` is True if the write must increase
    the registry's revision: the version makes a soft-deleted schema or subject visible again, or an import replaces a
    version or has references.
    """

    subject: str
    expected: ExpectedRevisions
    candidate: Candidate
    version: int
    known: StoredSchema | None = None
    imported_id: SchemaId | None = None
    revives: bool = False

    @property
    def context(self) -> str:
        return context_of(self.subject)

    @property
    def new_id(self) -> IdRequest | None:
        is_needed = self.imported_id is None and self.known is None
        return IdRequest(self.context, self.candidate.content) if is_needed else None

    @property
    def is_plain(self) -> bool:
        """Whether the plan adds only a version and its schema: the schema gets a new id and has no references, and
        nothing deleted becomes visible again."""
        return self.new_id is not None and not self.candidate.content.references and not self.revives


@dataclass(frozen=True, slots=True)
class RegistrationResult:
    """The registered version. `is_new` is True if this registration added it. `history` is the database's history
    number, which changes when the database returns to an earlier state; see `storage.revision`. It is 0 for an existing
    version."""

    stored: StoredVersion
    is_new: bool
    history: int = 0


class _LockStripe:
    """A lock of this process for the registrations of a group of subjects (those with the same hash).

    While `serialized_attempts_left` is not 0, other processes are registering under these subjects too, and each
    attempt also takes the database's lock. `had_conflict` is True if the current registration has already failed an
    attempt.
    """

    __slots__ = ("had_conflict", "lock", "serialized_attempts_left")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.serialized_attempts_left = 0
        self.had_conflict = False


class Registration:
    """Registers schemas. `now_ms` returns the time of registration in milliseconds since 1970."""

    def __init__(
        self,
        database: Database,
        parser: SchemaParser,
        configuration: Configuration,
        compatibility: Compatibility,
        now_ms: Callable[[], int],
    ) -> None:
        self._database = database
        self._parser = parser
        self._configuration = configuration
        self._compatibility = compatibility
        self._now_ms = now_ms
        # (context, fingerprint) of contents that are known to have an id.
        self._known_contents = LruCache[tuple[str, bytes], bool](KNOWN_CONTENTS_MAX)
        self._lock_stripes = tuple(_LockStripe() for _ in range(LOCK_STRIPES))

    def register(
        self,
        subject: str,
        request: SchemaRequest,
        *,
        normalize: bool,
        force: bool = False,
        offload: ComparisonOffload | None = None,
    ) -> RegistrationResult:
        """Returns the version with the schema: an existing one if it is equal, else a new one.

        Does not return before all processes have stopped serving cached responses from before the new version.

        Args:
            subject: the subject; an alias is resolved.
            request: the schema.
            normalize: normalizes the schema's text, as the configuration may too; never in an import.
            force: skips the compatibility check.
            offload: defers a slow comparison, or has the result of a deferred one; None runs every comparison here.

        Raises:
            ComparisonDeferred: the comparison is slow. The caller runs `Compatibility.run_comparison` and then calls
                `register` again with its result.
            InvalidRuleSet: the rules are invalid.
            InvalidSchema: the schema is malformed or empty, lacks a reference, or is not the version that the request
                expects; or the subject has no version number left.
            IncompatibleSchema: the subject's compatibility level forbids the schema.
            OperationNotPermitted: the subject's mode forbids it, another schema has the imposed id, or the context has
                no id left.
            SchemaIdMismatch: the imposed version exists with another id.
            StoreError: the database failed, or `REGISTRATION_ATTEMPTS_MAX` attempts met other changes.
        """
        if request.rule_set is not None:
            check_rule_set(request.rule_set)
        compare = partial(self._require_compatible, offload=offload)
        decide = partial(
            self._decide, subject=subject, request=request, normalize=normalize, compare=None if force else compare
        )
        stripe = self._lock_stripes[hash(subject) % LOCK_STRIPES]
        # Attempts are serialized, because only one of several concurrent attempts would succeed.
        with stripe.lock:
            stripe.had_conflict = False
            attempts = (self._attempt(subject, decide, stripe) for _ in range(REGISTRATION_ATTEMPTS_MAX))
            registered = next(filter(None, attempts), None)
        if registered is None:
            raise StoreError(
                f"Register operation on subject '{subject}' timed out: too many concurrent changes; try again"
            )
        if registered.is_new:
            stored = registered.stored
            # Cached, because the subject's next registration is compared with it, and other subjects may register it
            # too.
            self._database.cache_schema(registered.history, stored.schema)
            self._remember_known(stored.schema.context, stored.schema.content)
            logger.info(
                "schema registered: subject=%s version=%d schema_id=%d",
                quoted_for_log(stored.subject),
                stored.version,
                stored.schema.schema_id,
            )
        else:
            # Another request may have just made the version visible again and be waiting for leases to expire.
            self._database.wait_out_leases_of_new_revision()
        return registered

    def _attempt(
        self, subject: str, decide: Callable[[Repository], StoredVersion | _RegistrationPlan], stripe: _LockStripe
    ) -> RegistrationResult | None:
        """Makes one attempt to register: decides which version to add, writes it and returns it. Returns None if
        another transaction interfered, so that the caller must try again.

        Args:
            subject: the subject.
            decide: returns an existing version with the schema, or the plan of a new one.
            stripe: the subject's lock, which this thread holds. It records conflicts; after the second one, attempts
                also take the database's lock.
        """
        try:
            if stripe.serialized_attempts_left:
                stripe.serialized_attempts_left -= 1
                return self._database.write_serialized(subject, decide, self._write_decision, new_id=_new_id_of)
            # The write verifies everything that the decision depends on: the subject's revision, references, the new
            # content.
            decided = self._database.read(decide, in_one_snapshot=False)
            if isinstance(decided, StoredVersion):
                return RegistrationResult(decided, is_new=False)
            return self._database.write(
                partial(self._write_decision, decided=decided),
                attempts=1,
                new_id=decided.new_id,
                in_one_statement=decided.is_plain,
            )
        except ContentExists as error:
            self._remember_known(error.request.context, error.request.content)
        except WriteConflict:
            # The database's lock is used only after the second conflict, because a change of configuration may have
            # caused the first one.
            if stripe.had_conflict:
                stripe.serialized_attempts_left = SERIALIZED_ATTEMPTS
            stripe.had_conflict = True
        return None

    def _remember_known(self, context: str, content: SchemaContent) -> None:
        self._known_contents.put((context, content.fingerprint), True, 1)

    def _write_decision(self, repository: Repository, decided: StoredVersion | _RegistrationPlan) -> RegistrationResult:
        if isinstance(decided, StoredVersion):
            return RegistrationResult(decided, is_new=False)
        return RegistrationResult(self._write_plan(repository, decided), is_new=True, history=decided.expected.history)

    def _decide(
        self,
        repository: Repository,
        *,
        subject: str,
        request: SchemaRequest,
        normalize: bool,
        compare: Callable[[Repository, SubjectSettings, Candidate], None] | None,
    ) -> StoredVersion | _RegistrationPlan:
        # The view is read first, because its statement also reads the revision of the configuration.
        repository.subject_view(subject)
        history, settings_revision = repository.history(), repository.settings_revision()
        settings = self._configuration.settings(repository, subject)
        subject, config = settings.subject, settings.config
        view = repository.subject_view(subject)
        expected = ExpectedRevisions(view.state, history, settings_revision)
        # An imported schema keeps the text that it has in its source registry.
        normalize = not settings.mode.takes_ids and (normalize or bool(config.normalize))
        tagged = self._with_requested_tags(repository, subject, request)
        request, is_tagged = tagged, tagged is not request
        candidate, problem = self._parse_request(repository, request, settings, normalize)
        # A request with a version number requires a new version, unless it also imposes the id of the existing version.
        is_new = request.version not in (None, 0, LATEST) and request.schema_id is None
        if candidate is not None and not (is_new or is_tagged or adds_metadata_or_rules(config)):
            existing = find_matching_version(
                repository, self._parser, subject, view, candidate, version=request.version
            )
            if existing is not None and request.schema_id in (None, existing.schema.schema_id):
                return existing
        _require_mode(subject, request, settings.mode)
        if problem is not None:
            raise problem
        if settings.mode.takes_ids:
            return _decide_import(repository, subject, view, expected, candidate, request)
        latest = repository.version(subject, LATEST)
        request = complete_request(request, config, latest, view.next_version)
        if candidate is None:
            candidate = self._parser.parse_candidate(repository, subject, request, normalize=normalize, strict=False)
        content = replace(candidate.content, metadata=request.metadata, rule_set=request.rule_set)
        candidate = replace(candidate, content=content)
        if request.version in (None, 0):
            existing = find_matching_version(repository, self._parser, subject, view, candidate)
            if existing is not None:
                return existing
        if compare is not None:
            compare(repository, settings, candidate)
        if request.version not in (None, 0, LATEST, view.next_version):
            raise InvalidSchema("Version is not one more than previous version", subject=subject)
        _require_number(subject, view.next_version)
        plan = _RegistrationPlan(subject, expected, candidate, view.next_version, revives=view.is_deleted)
        return self._with_known_schema(repository, plan)

    def _with_known_schema(self, repository: Repository, plan: _RegistrationPlan) -> _RegistrationPlan:
        content = plan.candidate.content
        # On PostgreSQL the reservation of an id detects a content that already has one. Most contents are new, so a
        # query is made only for those known to have an id.
        is_deferred_to_insert = not (
            self._database.is_sqlite or self._known_contents.get((plan.context, content.fingerprint))
        )
        known = None if is_deferred_to_insert else repository.schema_with_content(plan.context, content)
        revives = known is not None and repository.is_soft_deleted_for(known.row_key, plan.subject)
        return replace(plan, known=known, revives=plan.revives or revives)

    def _with_requested_tags(self, repository: Repository, subject: str, request: SchemaRequest) -> SchemaRequest:
        if not (request.tags_to_add or request.tags_to_remove or request.propagates_tags):
            return request
        return self._parser.apply_tags(repository, subject, request, repository.version(subject, LATEST))

    def _parse_request(
        self,
        repository: Repository,
        request: SchemaRequest,
        settings: SubjectSettings,
        normalize: bool,
    ) -> tuple[Candidate | None, InvalidSchema | None]:
        """Parses the request's schema. Returns the schema, and the error that forbids registering it as a new version.

        A schema with an error is returned too, because an existing version may already have it. The schema is None if
        it cannot be parsed or if the request has none.

        Args:
            repository: contains the referenced schemas.
            request: the request.
            settings: the subject and its effective configuration, which decides how strictly a new schema is checked.
            normalize: normalizes the schema's text.
        """
        if not has_schema_text(request):
            return None, None
        parse = partial(self._parser.parse_candidate, repository, settings.subject, request, normalize=normalize)
        try:
            # The source registry of an import has accepted the schema and its references.
            is_import = request.schema_id is not None
            strict = not is_import and settings.config.validate_new_schemas is not False
            return parse(strict=strict, deleted=is_import), None
        except InvalidSchema as error:
            problem = error
        try:
            return parse(strict=False, deleted=True), problem
        except InvalidSchema:
            return None, problem

    def _require_compatible(
        self,
        repository: Repository,
        settings: SubjectSettings,
        candidate: Candidate,
        *,
        offload: ComparisonOffload | None,
    ) -> None:
        if offload is None:
            verdict = self._compatibility.check(repository, settings, candidate)
        else:
            verdict = self._compatibility.check_or_defer(repository, settings, candidate, offload)
        if not verdict.is_compatible:
            raise IncompatibleSchema(verdict.messages, subject=settings.subject)

    def _write_plain(self, repository: Repository, plan: _RegistrationPlan) -> StoredVersion:
        now_ms, candidate = self._now_ms(), plan.candidate
        schema_id = _new_id(repository, plan)
        schema = repository.add_version_with_schema(
            plan.subject,
            plan.expected,
            plan.version,
            schema_id,
            candidate.content,
            candidate.lookup_key,
            now_ms,
        )
        return StoredVersion(plan.subject, plan.version, schema, now_ms)

    def _write_plan(self, repository: Repository, plan: _RegistrationPlan) -> StoredVersion:
        if plan.is_plain:
            return self._write_plain(repository, plan)
        now_ms = self._now_ms()
        if plan.revives:
            repository.bump_revision()
        subject_id = repository.claim_subject(plan.subject, plan.expected.subject)
        repository.require_settings(plan.expected)
        is_import = plan.imported_id is not None
        targets = {
            (resolve_in_context(plan.subject, reference.subject), reference.version)
            for reference in plan.candidate.content.references
        }
        # Versions are locked in the order in which deletions lock them, so that transactions cannot deadlock.
        for target, version in sorted(targets):
            if not repository.lock_referenced_version(target, version, deleted=is_import):
                raise WriteConflict(
                    f"the referenced version {version} of {target} was deleted by another request; try again"
                )
        repository.list_context(plan.context)
        schema = _locked_schema(repository, plan) if plan.known is not None else _new_schema(repository, plan, now_ms)
        if not is_import:
            repository.add_version(subject_id, plan.version, schema.row_key, now_ms)
        elif repository.put_version(subject_id, plan.version, schema.row_key, now_ms):
            refresh_lookup_keys(repository, plan.subject, plan.version)
        if plan.revives:
            _remove_replaced_versions(repository, subject_id, plan, schema)
        return StoredVersion(plan.subject, plan.version, replace(schema, deleted=False), now_ms)


def _decide_import(
    repository: Repository,
    subject: str,
    view: SubjectView,
    expected: ExpectedRevisions,
    candidate: Candidate | None,
    request: SchemaRequest,
) -> _RegistrationPlan:
    """Decides which version an import adds. The schema keeps the id, the version and the content that it has in its
    source registry.

    Args:
        repository: contains the subject.
        subject: the resolved subject.
        view: the subject's versions.
        expected: the revisions at which the subject and the settings were read; the write verifies them.
        candidate: the parsed schema of the request; None if the request has none, which is an error.
        request: has the id, and the version number or none for the next one.
    """
    if candidate is None:
        raise InvalidSchema("Empty schema")
    assert request.schema_id is not None
    context, schema_id = context_of(subject), SchemaId(request.schema_id)
    owner = repository.schema(context, schema_id)
    if owner is not None and owner.content != candidate.content:
        raise OperationNotPermitted(
            f"Overwrite new schema with id {schema_id} in context {context} is not permitted.", subject=subject
        )
    version = request.version if request.version is not None and request.version > 0 else view.next_version
    existing = repository.version(subject, version)
    if existing is not None and existing.schema.schema_id != schema_id:
        raise SchemaIdMismatch(str(schema_id), subject=subject, version=version, schema_id=existing.schema.schema_id)
    # An import that only adds versions invalidates no cached response, so thousands of them need not wait for leases.
    # Schemas with references do, because a concurrent import may replace soft-deleted schemas that they refer to.
    revives = (
        view.is_deleted
        or any(entry.version == version for entry in view.entries)
        or bool(candidate.content.references)
        or (owner is not None and repository.is_soft_deleted_for(owner.row_key, subject))
    )
    _require_number(subject, version)
    return _RegistrationPlan(subject, expected, candidate, version, known=owner, imported_id=schema_id, revives=revives)


def _new_id_of(decided: StoredVersion | _RegistrationPlan) -> IdRequest | None:
    return None if isinstance(decided, StoredVersion) else decided.new_id


def _locked_schema(repository: Repository, plan: _RegistrationPlan) -> StoredSchema:
    """Returns the existing schema `plan.known`, which the new version uses, locked against deletion until the
    transaction ends.

    Raises:
        WriteConflict: the schema was deleted or soft-deleted after the plan was made.
    """
    assert plan.known is not None
    described = f"schema id {plan.known.schema_id} of context {plan.context}"
    if not repository.lock_schema(plan.known.row_key):
        raise WriteConflict(f"{described} was deleted by another request; try again")
    # Checked again, because the previous holder of the lock may have deleted its last live version.
    if not plan.revives and repository.is_soft_deleted_for(plan.known.row_key, plan.subject):
        raise WriteConflict(f"{described} was soft-deleted by another request; try again")
    return plan.known


def _new_schema(repository: Repository, plan: _RegistrationPlan, now_ms: int) -> StoredSchema:
    content, context = plan.candidate.content, plan.context
    is_copy = False
    if plan.imported_id is None:
        schema_id = _new_id(repository, plan)
    else:
        schema_id = plan.imported_id
        repository.advance_next_id(context, schema_id)
        is_copy = repository.schema_with_content(context, content) is not None
    row_key = repository.add_schema(context, schema_id, content, plan.candidate.lookup_key, now_ms, is_copy=is_copy)
    if row_key is None:
        raise WriteConflict(
            f"another request added schema id {schema_id} or the same schema to context {context}; try again"
        )
    return StoredSchema(schema_id, content, now_ms, context=context, row_key=row_key)


def _new_id(repository: Repository, plan: _RegistrationPlan) -> SchemaId:
    schema_id = repository.take_next_id(plan.context)
    # Imports can use up the ids.
    if schema_id > SCHEMA_ID_MAX:
        raise OperationNotPermitted(
            f"No schema id up to {SCHEMA_ID_MAX} is left in context {plan.context}; register in another context",
            subject=plan.subject,
        )
    return schema_id


def _require_number(subject: str, version: int) -> None:
    # Imports can use up the numbers.
    if version > VERSION_MAX:
        raise InvalidSchema(
            f"No version number is left for subject '{subject}'; register under another subject name", subject=subject
        )


def _require_mode(subject: str, request: SchemaRequest, mode: Mode) -> None:
    refuse_readonly(subject, mode)
    if request.schema_id is not None and not mode.takes_ids:
        raise not_permitted(subject, "is not in import mode")
    if request.schema_id is None and mode is not Mode.READWRITE:
        raise not_permitted(subject, "is not in read-write mode")


def refresh_lookup_keys(repository: Repository, subject: str, version: int) -> None:
    """Recomputes the lookup keys of all schemas that refer to a version, directly or through other schemas. Schemas
    that cannot be parsed retain their key. To be called after the version (`subject`, `version`) got another schema."""
    # A new parser, because the service's own would cache schemas that are not committed.
    parser = SchemaParser()
    pending, visited = [(subject, version)], set[int]()
    while pending:
        for referrer in repository.referencing_schemas(*pending.pop(), deleted=True):
            if referrer.row_key in visited:
                continue
            visited.add(referrer.row_key)
            pending += [(user.subject, user.version) for user in repository.versions_using(referrer, deleted=True)]
            lookup_key = parser.lookup_key(repository, referrer)
            if lookup_key is not None:
                repository.set_lookup_key(referrer.row_key, lookup_key)


def _remove_replaced_versions(
    repository: Repository, subject_id: int, plan: _RegistrationPlan, schema: StoredSchema
) -> None:
    """Permanently deletes the soft-deleted versions that a new version with the same schema replaces, unless they are
    referenced.

    Args:
        repository: the database.
        subject_id: the row id of the subject.
        plan: names the subject and the new version; only earlier versions are deleted.
        schema: the schema of the new version.
    """
    replaced = [
        found.version
        for found in repository.versions(subject=plan.subject, schema_key=schema.row_key, deleted=True)
        if found.deleted
        and found.version < plan.version
        and not repository.referencing_schemas(plan.subject, found.version, deleted=True)
    ]
    if replaced:
        repository.remove_versions(subject_id, replaced)
