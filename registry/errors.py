"""Errors of the registry.

RegistryError
├── SubjectNotFound                    the subject has no visible version, or no configuration or mode to be removed
├── VersionNotFound
├── SchemaNotFound                     no such id or guid, or no version with the schema or the metadata properties
├── SubjectSoftDeleted                 soft deletion of a soft-deleted subject
├── SubjectNotSoftDeleted              permanent deletion of a subject that is not soft-deleted
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
├── OperationNotPermitted              a mode, a setting, or existing versions and ids forbid it
├── ReferenceExists                    another schema refers to the version to be deleted
├── SchemaIdMismatch                   an imported version already exists with another schema id
├── ContextNotEmpty                    deletion of a context that has subjects
├── SchemaTooLarge
├── StoreError                         the database failed, or concurrent changes conflicted too often
│   └── DatabaseUnusable               it cannot be opened, written or migrated, or a newer release has migrated it
│       └── DatabaseOutdated           its tables are of an earlier migration, or missing
├── UsersFileUnusable                  the users file cannot be read or has a mistake
├── TokenKeysUnusable                  the keys that verify bearer tokens cannot be read or used
├── ServiceError                       any other error response, or a response that is not one of a registry
│   └── CredentialsRefused             missing or wrong credentials (raised by the client only)
├── AccessDenied                       the principal lacks the permission
├── ExportFileInvalid                  not an export file, or of another format, truncated or changed
├── RegistryChanged                    the source of an export changed during the export
├── InvalidResponse                    a malformed response, or one with the replication format of another release
├── ReplicationStopped                 a replica cannot replicate, or no longer can
├── ImportStopped                      the target registry rejected too much, or did something other than the request
└── RegistryUnavailable                no response, or unusable settings of the client (raised by the client only)

The templates equal the messages of the Confluent Schema Registry word for word if it has the same error, because
clients and scripts compare them. Only `ServiceError` depends on HTTP. `registry/api/problems.py` maps errors to
responses, `registry/client/responses.py` maps responses to errors.
"""

from __future__ import annotations

from typing import ClassVar


class RegistryError(Exception):
    """The root of the registry's errors. `subject`, `version`, `schema_id` and `detail` are set where the error has
    them. When the client raises the error of a response, it sets only the first three, from its request.

    The error's message is the class's `template`, formatted with those fields. The argument `message` replaces it.
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
    """No schema has the id or guid, or no version of the subject has the schema or the requested metadata properties.
    `schema_id` is None if no schema was requested by id."""

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
    """The subject's compatibility settings forbid the schema. `findings` has one message per incompatibility; `detail`
    is the list as text. When the client raises the error, `findings` is empty and the message has the list."""

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
    """The version to be imported already exists with another schema id. `schema_id` is the existing id; `detail` is the
    id that the request imposed."""

    template = "Schema already registered with id {schema_id} instead of input id {detail}"


class ContextNotEmpty(RegistryError):
    """The context to be deleted has subjects. `detail` is the context."""

    template = "The specified context '{detail}' is not empty."


class SchemaTooLarge(RegistryError):
    template = "Register operation failed because schema is too large"


class StoreError(RegistryError):
    pass


class DatabaseUnusable(StoreError):
    """The database cannot be opened, written or migrated, or a newer release has migrated it. The message is `problem`,
    followed by `remedy` unless that is empty."""

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        super().__init__(f"{problem}: {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy


class DatabaseOutdated(DatabaseUnusable):
    """The tables were made by an earlier release and lack newer migrations, or the database has no tables. The server
    upgrades an SQLite database when it starts; other databases are upgraded by `headrace registry db upgrade`."""


class TokenKeysUnusable(RegistryError):
    """The keys that verify bearer tokens cannot be read, or are not a key set with a usable key; the message gives the
    reason."""


class UsersFileUnusable(RegistryError):
    """The users file cannot be read or has a mistake. `detail` is one sentence for the operator of the registry."""


class ServiceError(RegistryError):
    """An error response for which there is no specific error class, or a response that is not one of a registry.
    `status` is the HTTP status. `error_code` is that of the response, or 0 if it has none."""

    def __init__(self, detail: str, *, status: int = 0, error_code: int = 0) -> None:
        self.status = status
        self.error_code = error_code
        super().__init__(detail)


class CredentialsRefused(ServiceError):
    pass


class AccessDenied(RegistryError):
    pass


class RegistryUnavailable(RegistryError):
    """The client got no response of the registry, or its settings (URL, proxy, TLS files, bearer token) cannot be used.
    `url` is the address of the registry."""

    template = "schema registry at {detail}"

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        super().__init__(f"{url or 'the registry'} cannot be reached: {reason}")


INCONCLUSIVE_ERRORS = (RegistryUnavailable, ServiceError, StoreError)
"""Errors of a request that leave its result unknown. A later request, or one of another user, may succeed."""


class ExportFileInvalid(RegistryError):
    """The file is not an export file, has another format, or was truncated or changed. `location` is the file name,
    with a line number for an error in one line."""

    def __init__(self, location: str, problem: str) -> None:
        self.location = location
        super().__init__(f"{location}: {problem}")


class RegistryChanged(RegistryError):
    pass


class InvalidResponse(RegistryError):
    pass


class ReplicationStopped(RegistryError):
    """A replica cannot replicate, or no longer can. `detail` is one sentence for the operator of the replica."""


class ImportStopped(RegistryError):
    pass
