"""What can go wrong in the registry.

RegistryError
├── SubjectNotFound                    the subject has no version that the question may see
├── VersionNotFound
├── SchemaNotFound                     no such id, or no such schema under the subject
├── SubjectSoftDeleted                 deleting softly what is deleted softly
├── SubjectNotSoftDeleted              deleting for good what is not deleted softly
├── VersionSoftDeleted
├── VersionNotSoftDeleted
├── SubjectLevelNotConfigured
├── SubjectModeNotConfigured
├── IncompatibleSchema
├── InvalidSchema
├── InvalidVersion
├── InvalidCompatibilityLevel
├── InvalidRuleSet
├── InvalidMode
├── InvalidSubject
├── OperationNotPermitted              the mode of the subject forbids it
├── ReferenceExists                    another schema refers to what was to be deleted
├── SchemaIdMismatch                   an imported schema is there under another id
├── ContextNotEmpty                    deleting a context that still holds subjects
├── SchemaTooLarge
├── StoreError                         the database failed
│   └── DatabaseUnusable               it cannot be opened, written or brought to this version's tables
│       └── DatabaseOutdated           its tables are of an earlier migration
├── UsersFileUnusable                  the users file cannot be read or has a mistake
├── TokenKeysUnusable                  the keys that bearer tokens are signed with cannot be had
├── ServiceError                       an answer that fits nothing else in this tree
│   └── CredentialsRefused             missing or wrong (raised by the client only)
├── AccessRefused                      whoever asks may not do this
├── ExportFileInvalid                  a file that is none, is cut off or was changed
├── RegistryChanged                    the source of an export was written to while it was read
├── AnswerUnusable                     an answer that no registry with this API gives
├── FollowingStopped                   a registry cannot follow another one, or no longer
├── ImportStopped                      the target did something else than what was asked
└── RegistryUnavailable                the registry cannot be reached (raised by the client only)

The messages are those of the Confluent Schema Registry word for word, because clients and scripts compare them.
Errors know nothing of HTTP; `registry/api/problems.py` maps them to responses and `registry/client/answers.py` back.
"""

from __future__ import annotations

from typing import ClassVar


class RegistryError(Exception):
    """The root. `subject`, `version`, `schema_id` and `detail` are set where the case has them.

    The message is `template` filled with those fields, or `message` where an answer already carries one.
    """

    template: ClassVar[str] = "{detail}"

    def __init__(
        self,
        detail: str = "",
        *,
        subject: str = "",
        version: int | str | None = None,
        schema_id: int | None = None,
        message: str | None = None,
    ) -> None:
        self.detail = detail
        self.subject = subject
        self.version = version
        self.schema_id = schema_id
        fields = {"detail": detail, "subject": subject, "version": version, "schema_id": schema_id}
        super().__init__(self.template.format(**fields) if message is None else message)


class SubjectNotFound(RegistryError):
    template = "Subject '{subject}' not found."


class VersionNotFound(RegistryError):
    template = "Version {version} not found."


class SchemaNotFound(RegistryError):
    """With `schema_id` when an id was asked for; without when a schema was looked up."""

    template = "Schema not found"

    def __init__(self, *, subject: str = "", schema_id: int | None = None, message: str | None = None) -> None:
        if message is None and schema_id is not None:
            message = f"Schema {schema_id} not found"
        super().__init__(subject=subject, schema_id=schema_id, message=message)


class SubjectSoftDeleted(RegistryError):
    template = "Subject '{subject}' was soft deleted.Set permanent=true to delete permanently"


class SubjectNotSoftDeleted(RegistryError):
    template = "Subject '{subject}' was not deleted first before being permanently deleted"


class VersionSoftDeleted(RegistryError):
    template = "Subject '{subject}' Version {version} was soft deleted.Set permanent=true to delete permanently"


class VersionNotSoftDeleted(RegistryError):
    template = "Subject '{subject}' Version {version} was not deleted first before being permanently deleted"


class SubjectLevelNotConfigured(RegistryError):
    template = "Subject '{subject}' does not have subject-level compatibility configured"


class SubjectModeNotConfigured(RegistryError):
    template = "Subject '{subject}' does not have subject-level mode configured"


class IncompatibleSchema(RegistryError):
    """`findings` are the messages, one per problem; `detail` is their list as text."""

    template = (
        'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: {detail}'
    )

    def __init__(self, findings: tuple[str, ...] = (), *, subject: str = "", message: str | None = None) -> None:
        self.findings = findings
        super().__init__("[" + ", ".join(findings) + "]", subject=subject, message=message)


class InvalidSchema(RegistryError):
    pass


class InvalidVersion(RegistryError):
    template = (
        "The specified version '{version}' is not a valid version id. "
        'Allowed values are between [1, 2^31-1] and the string "latest"'
    )


class InvalidCompatibilityLevel(RegistryError):
    template = (
        "Invalid compatibility level. Valid values are none, backward, forward, full, "
        "backward_transitive, forward_transitive, and full_transitive"
    )


class InvalidRuleSet(RegistryError):
    pass


class InvalidMode(RegistryError):
    template = "Invalid mode. Valid values are READWRITE, READONLY, IMPORT and FORWARD."


class InvalidSubject(RegistryError):
    template = "The specified subject '{subject}' is not a valid."


class OperationNotPermitted(RegistryError):
    pass


class ReferenceExists(RegistryError):
    template = (
        "One or more references exist to the schema {{magic=1,keytype=SCHEMA,subject={subject},version={version}}}."
    )


class SchemaIdMismatch(RegistryError):
    """`schema_id` is the one that the content has; `detail` the one that was to be imposed."""

    template = "Schema already registered with id {schema_id} instead of input id {detail}"


class ContextNotEmpty(RegistryError):
    """`detail` is the context."""

    template = "The specified context '{detail}' is not empty."


class SchemaTooLarge(RegistryError):
    template = "Register operation failed because schema is too large"


class StoreError(RegistryError):
    pass


class DatabaseUnusable(StoreError):
    """The message is `problem`, and `remedy` where one is known ("": none)."""

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        super().__init__(f"{problem}: {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy


class DatabaseOutdated(DatabaseUnusable):
    """A SQLite database is upgraded when the registry starts, others by `headrace registry db upgrade`."""


class TokenKeysUnusable(RegistryError):
    """The keys that tokens are checked with cannot be had, for the reason given."""


class UsersFileUnusable(RegistryError):
    """`detail` is one sentence for the person who starts the registry."""


class ServiceError(RegistryError):
    """`status` and `error_code` are those of the answer."""

    def __init__(self, detail: str, *, status: int = 0, error_code: int = 0) -> None:
        self.status = status
        self.error_code = error_code
        super().__init__(detail)


class CredentialsRefused(ServiceError):
    pass


class AccessRefused(RegistryError):
    pass


class RegistryUnavailable(RegistryError):
    """`url` is the registry's address."""

    template = "schema registry at {detail}"

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        super().__init__(f"{url} cannot be reached: {reason}")


UNANSWERED = (RegistryUnavailable, ServiceError, StoreError)
"""What a client can meet that says nothing of what it asked: later, or to another user, there is an answer."""


class ExportFileInvalid(RegistryError):
    """`place` is the file's name, with a line number where the error is one line's."""

    def __init__(self, place: str, problem: str) -> None:
        self.place = place
        super().__init__(f"{place}: {problem}")


class RegistryChanged(RegistryError):
    pass


class AnswerUnusable(RegistryError):
    pass


class FollowingStopped(RegistryError):
    """`detail` is one sentence for the person who let it follow."""


class ImportStopped(RegistryError):
    pass
