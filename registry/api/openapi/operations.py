"""Table of all operations of the API: parameters, bodies, results and specific errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one route in the OpenAPI document.

    `result` names a row of `components.SCHEMAS`, or is "Nothing" or "Metrics". `body` names a row of
    `components.BODIES`. `errors` omits the errors that every operation may return.
    """

    method: str
    path: str
    name: str
    summary: str
    result: str
    query: tuple[str, ...] = ()
    body: str = ""
    errors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryParameter:
    """A query parameter of an operation. `kind` is a row of `components.PARAMETER_KINDS`; `text` is its description."""

    kind: str
    text: str


QUERY: Final = {
    "aliases": QueryParameter("flag", "also list the subjects that listed aliases refer to, and the aliases of each"),
    "contextPrefix": QueryParameter("text", "only contexts that begin with this text"),
    "defaultToGlobal": QueryParameter("flag", "return the effective value, inherited from the context or globally"),
    "deleted": QueryParameter("flag", "include soft-deleted versions"),
    "deletedAsNegative": QueryParameter("flag", "all versions, with soft-deleted ones as negative numbers"),
    "deletedOnly": QueryParameter("flag", "only soft-deleted versions; overrides `deleted`"),
    "deleted_only": QueryParameter("flag", "alias of `deletedOnly`"),
    "fetchMaxId": QueryParameter("flag", "also return the highest id of the context"),
    "findTags": QueryParameter("texts", "return the records and fields with these tags; `*` is any tag"),
    "find_tags": QueryParameter("texts", "alias of `findTags`"),
    "force": QueryParameter("flag", "skip the checks that would reject the request"),
    "format": QueryParameter("text", "`resolved` includes the referenced types in the schema; others are ignored"),
    "key": QueryParameter("texts", "a metadata property; the n-th `value` belongs to the n-th `key`"),
    "latestOnly": QueryParameter("flag", "only the newest version of each subject"),
    "limit": QueryParameter("integer", "maximum number of items; 0 or less means no limit"),
    "normalize": QueryParameter("flag", "compare and store schemas in their normalized form"),
    "offset": QueryParameter("integer", "number of items to skip"),
    "permanent": QueryParameter("flag", "delete permanently; requires a soft deletion first"),
    "recursive": QueryParameter("flag", "also remove the modes of the subjects in the context"),
    "referenceFormat": QueryParameter("text", "`qualified` includes the context in the name of referenced subjects"),
    "reference_format": QueryParameter("text", "alias of `referenceFormat`"),
    "ruleType": QueryParameter("text", "only schemas with a rule of this type"),
    "subject": QueryParameter("text", "a subject in the context of the id"),
    "subjectPrefix": QueryParameter("text", "only subjects that begin with this text; `:*:` means every context"),
    "value": QueryParameter("texts", "the required value of the property"),
    "verbose": QueryParameter("flag", "also return the incompatibilities"),
}
"""Query parameters by name."""

_PAGE = ("offset", "limit")
_FORM = ("format", "referenceFormat", "reference_format", "findTags", "find_tags")
_NAMED = (40401, 42208)
_VERSION = (40401, 40402, 42202, 42208)
_CHECKED = (42201, 42202, 42208)
_SUBJECT = "/subjects/{subject}"
_OF_VERSION = "/subjects/{subject}/versions/{version}"

OPERATIONS: Final = (
    Operation("GET", "/", "root", "Empty object; shows that a registry is running", "Empty"),
    Operation("POST", "/", "postRoot", "Empty object", "Empty"),
    Operation("GET", "/healthz", "liveness", "Liveness of the process", "Status"),
    Operation("GET", "/readyz", "readiness", "Readiness, including the database", "Status", errors=(50001,)),
    Operation("GET", "/metrics", "metrics", "Counts and durations of requests, for Prometheus", "Metrics"),
    Operation("GET", "/openapi.json", "openapi", "This document", "Document"),
    Operation("GET", "/v1/metadata/id", "clusterId", "Id of the registry's cluster", "ClusterId"),
    Operation("GET", "/v1/metadata/version", "version", "Version of the registry software", "ServerVersion"),
    Operation("GET", "/v1/metadata/deployment", "deployment", "Attributes of the deployment", "Deployment"),
    Operation(
        "POST",
        "/replication",
        "replicate",
        "Changes that a replica has not copied yet; for `headrace registry replicate` only",
        "ReplicationResponse",
        body="ReplicationRequest",
    ),
    Operation("GET", "/contexts", "listContexts", "Contexts", "Names", ("contextPrefix", *_PAGE)),
    Operation(
        "GET", "/scopes", "listScopes", "Contexts and subjects with their own configuration or mode", "Names", _PAGE
    ),
    Operation("GET", "/contexts/{context}", "contextRoot", "Empty object of a context", "Empty", errors=(400,)),
    Operation(
        "DELETE", "/contexts/{context}", "deleteContext", "Deletes an empty context", "Nothing", errors=(400, 42211)
    ),
    Operation(
        "GET",
        "/subjects",
        "listSubjects",
        "Names of subjects",
        "Names",
        ("subjectPrefix", "subject", "deleted", "deletedOnly", "deleted_only", *_PAGE),
    ),
    Operation(
        "POST",
        _SUBJECT,
        "lookUp",
        "The version of a subject that has a schema",
        "Version",
        ("normalize", "deleted", *_FORM),
        "SchemaRequest",
        (40403, 42201, *_NAMED),
    ),
    Operation(
        "DELETE",
        _SUBJECT,
        "deleteSubject",
        "Deletes a subject; returns its versions",
        "Versions",
        ("permanent",),
        errors=(40404, 40405, 42205, 42206, *_NAMED),
    ),
    Operation(
        "GET",
        f"{_SUBJECT}/metadata",
        "latestWithMetadata",
        "The newest version with given metadata properties",
        "Version",
        ("key", "value", "deleted", *_FORM),
        errors=(40403, *_NAMED),
    ),
    Operation(
        "GET",
        f"{_SUBJECT}/versions",
        "listVersions",
        "Numbers of a subject's versions",
        "Versions",
        ("deleted", "deletedOnly", "deleted_only", "deletedAsNegative", *_PAGE),
        errors=_NAMED,
    ),
    Operation(
        "POST",
        f"{_SUBJECT}/versions",
        "register",
        "Registers a schema, or returns its existing version",
        "Registered",
        ("normalize", "force", *_FORM),
        "SchemaRequest",
        (40901, 42201, 42205, 42207, 42208, 42209, 42210),
    ),
    Operation(
        "GET",
        _OF_VERSION,
        "getVersion",
        "A version of a subject",
        "Version",
        ("deleted", *_FORM),
        errors=_VERSION,
    ),
    Operation(
        "DELETE",
        _OF_VERSION,
        "deleteVersion",
        "Deletes a version; returns its number",
        "VersionNumber",
        ("permanent",),
        errors=(40406, 40407, 42205, 42206, *_VERSION),
    ),
    Operation(
        "GET",
        f"{_OF_VERSION}/schema",
        "getVersionText",
        "Only the schema of a version",
        "SchemaText",
        ("deleted", *_FORM),
        errors=_VERSION,
    ),
    Operation(
        "GET",
        f"{_OF_VERSION}/referencedby",
        "listReferencing",
        "Ids of the schemas that refer to a version",
        "Ids",
        ("deleted", *_PAGE),
        errors=_VERSION,
    ),
    Operation(
        "POST",
        f"{_OF_VERSION}/tags",
        "changeTags",
        "Registers a new version with changed tags, metadata and rules",
        "Registered",
        _FORM,
        "TagChange",
        (40901, 42201, 42205, 42210, *_VERSION),
    ),
    Operation(
        "POST",
        "/compatibility/subjects/{subject}/versions",
        "checkSubject",
        "Whether a schema is compatible with the versions of a subject",
        "Compatibility",
        ("normalize", "verbose"),
        "SchemaRequest",
        _CHECKED,
    ),
    Operation(
        "POST",
        f"/compatibility{_OF_VERSION}",
        "checkVersion",
        "Whether a schema is compatible with one version",
        "Compatibility",
        ("normalize", "verbose"),
        "SchemaRequest",
        (40402, *_CHECKED),
    ),
    Operation(
        "GET",
        "/schemas",
        "listSchemas",
        "Versions of all subjects with their schemas, at most 1,000",
        "ListedVersions",
        ("subjectPrefix", "deleted", "latestOnly", "ruleType", "aliases", *_PAGE),
    ),
    Operation("GET", "/schemas/types", "listTypes", "Supported schema types", "Names"),
    Operation(
        "GET",
        "/schemas/ids/{id}",
        "getSchema",
        "A schema by its id",
        "Schema",
        ("subject", "fetchMaxId", *_FORM),
        errors=(40403,),
    ),
    Operation(
        "GET",
        "/schemas/ids/{id}/schema",
        "getSchemaText",
        "Only the text of a schema by its id",
        "SchemaText",
        ("subject", *_FORM),
        errors=(40403,),
    ),
    Operation(
        "GET",
        "/schemas/ids/{id}/subjects",
        "listSubjectsOfSchema",
        "Subjects that have a schema",
        "Names",
        ("subject", "deleted", *_PAGE),
        errors=(40403,),
    ),
    Operation(
        "GET",
        "/schemas/ids/{id}/versions",
        "listVersionsOfSchema",
        "Versions that have a schema",
        "SubjectVersions",
        ("subject", "deleted", *_PAGE),
        errors=(40403,),
    ),
    Operation(
        "GET",
        "/schemas/guids/{guid}",
        "getSchemaByGuid",
        "A schema by its guid, from any context",
        "Schema",
        _FORM,
        errors=(40403,),
    ),
    Operation(
        "GET",
        "/schemas/guids/{guid}/ids",
        "listIdsOfGuid",
        "The id of a schema in each context that has it",
        "ContextIds",
        errors=(40403,),
    ),
    Operation("GET", "/config", "getConfig", "The configuration of a context", "Config", ("defaultToGlobal",)),
    Operation(
        "PUT",
        "/config",
        "putConfig",
        "Changes the configuration of a context",
        "ConfigChange",
        body="ConfigChange",
        errors=(42203, 42205, 42208),
    ),
    Operation(
        "DELETE",
        "/config",
        "deleteConfig",
        "Removes the configuration of a context; returns its last value",
        "Config",
        errors=(42205,),
    ),
    Operation(
        "GET",
        "/config/{subject}",
        "getSubjectConfig",
        "The configuration of a subject",
        "Config",
        ("defaultToGlobal",),
        errors=(40408, 42208),
    ),
    Operation(
        "PUT",
        "/config/{subject}",
        "putSubjectConfig",
        "Changes the configuration of a subject",
        "ConfigChange",
        body="ConfigChange",
        errors=(42203, 42205, 42208),
    ),
    Operation(
        "DELETE",
        "/config/{subject}",
        "deleteSubjectConfig",
        "Removes the configuration of a subject; returns its last value",
        "Config",
        errors=(42205, *_NAMED),
    ),
    Operation("GET", "/mode", "getMode", "The mode of a context", "Mode", ("defaultToGlobal",)),
    Operation(
        "PUT",
        "/mode",
        "putMode",
        "Changes the mode of a context",
        "ModeChange",
        ("force",),
        "ModeChange",
        (42204, 42205),
    ),
    Operation(
        "DELETE",
        "/mode",
        "deleteMode",
        "Removes the mode of a context; returns its last value",
        "Mode",
        ("recursive",),
        errors=(40401, 42205),
    ),
    Operation(
        "GET",
        "/mode/{subject}",
        "getSubjectMode",
        "The mode of a subject",
        "Mode",
        ("defaultToGlobal",),
        errors=(40409, 42208),
    ),
    Operation(
        "PUT",
        "/mode/{subject}",
        "putSubjectMode",
        "Changes the mode of a subject",
        "ModeChange",
        ("force",),
        "ModeChange",
        (42204, 42205, 42208),
    ),
    Operation(
        "DELETE",
        "/mode/{subject}",
        "deleteSubjectMode",
        "Removes the mode of a subject; returns its last value",
        "Mode",
        ("recursive",),
        errors=(42205, *_NAMED),
    ),
)
