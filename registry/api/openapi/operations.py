"""Every call of the API: what it takes, what it answers, and which errors are its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one route.

    `answers` names a row of `components.SCHEMAS` or of `RESULTS`; `body` one of `components.BODIES`. Errors that any
    call may end with are not among `errors`.
    """

    method: str
    path: str
    name: str
    summary: str
    answers: str
    query: tuple[str, ...] = ()
    body: str = ""
    errors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryParameter:
    """`kind` is a row of `components.PARAMETER_KINDS`."""

    kind: str
    text: str


QUERY: Final = {
    "aliases": QueryParameter("flag", "also the subjects that wanted ones are aliases of, and who has which aliases"),
    "contextPrefix": QueryParameter("text", "only contexts whose name begins so"),
    "defaultToGlobal": QueryParameter("flag", "what holds, also where it is set for a context or for all"),
    "deleted": QueryParameter("flag", "also what is deleted softly"),
    "deletedAsNegative": QueryParameter("flag", "all versions, those deleted softly as negative numbers"),
    "deletedOnly": QueryParameter("flag", "only what is deleted softly; wins over `deleted`"),
    "deleted_only": QueryParameter("flag", "another name of `deletedOnly`"),
    "fetchMaxId": QueryParameter("flag", "also the highest id of the context"),
    "findTags": QueryParameter("texts", "tags to be looked for in the schema; `*` is any"),
    "find_tags": QueryParameter("texts", "another name of `findTags`"),
    "force": QueryParameter("flag", "do it although a check would refuse it"),
    "format": QueryParameter("text", "`resolved` writes out the types that the schema refers to; others are ignored"),
    "key": QueryParameter("texts", "a metadata property; the n-th `value` belongs to the n-th `key`"),
    "latestOnly": QueryParameter("flag", "only the newest version of each subject"),
    "limit": QueryParameter("integer", "the most that is answered; 0 or less is no limit"),
    "normalize": QueryParameter("flag", "compare and store schemas in their normalized form"),
    "offset": QueryParameter("integer", "how many to leave out"),
    "permanent": QueryParameter("flag", "delete for good what is deleted softly"),
    "recursive": QueryParameter("flag", "also the modes of the subjects in the context"),
    "referenceFormat": QueryParameter("text", "`qualified` names the context of each referenced subject"),
    "reference_format": QueryParameter("text", "another name of `referenceFormat`"),
    "ruleType": QueryParameter("text", "only schemas with a rule of this type"),
    "subject": QueryParameter("text", "a subject, whose context the id is of"),
    "subjectPrefix": QueryParameter("text", "only subjects that begin so; `:*:` looks in every context"),
    "value": QueryParameter("texts", "what the property must be"),
    "verbose": QueryParameter("flag", "say what is not compatible"),
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
    Operation("GET", "/", "root", "Nothing; shows that a registry is there", "Empty"),
    Operation("POST", "/", "postRoot", "Nothing", "Empty"),
    Operation("GET", "/healthz", "alive", "Whether the process answers", "Status"),
    Operation("GET", "/readyz", "ready", "Whether the database answers too", "Status", errors=(50001,)),
    Operation("GET", "/metrics", "metrics", "Counts and durations of requests, for Prometheus", "Metrics"),
    Operation("GET", "/openapi.json", "openapi", "This document", "Document"),
    Operation("GET", "/v1/metadata/id", "clusterId", "Of which cluster the registry is", "ClusterId"),
    Operation("GET", "/v1/metadata/version", "version", "The registry's own version", "ServerVersion"),
    Operation("GET", "/v1/metadata/deployment", "deployment", "How the registry is deployed", "Deployment"),
    Operation(
        "POST",
        "/follow",
        "follow",
        "What another registry, that holds the same as this one, has not seen yet; of `headrace registry follow` alone",
        "Told",
        body="FollowQuestion",
    ),
    Operation("GET", "/contexts", "listContexts", "Contexts", "Names", ("contextPrefix", *_PAGE)),
    Operation("GET", "/contexts/{context}", "contextRoot", "Nothing; the root of a context", "Empty", errors=(400,)),
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
        "Deletes a subject; answers which versions",
        "Versions",
        ("permanent",),
        errors=(40404, 40405, 42205, 42206, *_NAMED),
    ),
    Operation(
        "GET",
        f"{_SUBJECT}/metadata",
        "latestWithMetadata",
        "The newest version with certain metadata",
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
        "Registers a schema, or finds it there",
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
        "Deletes a version; answers its number",
        "VersionNumber",
        ("permanent",),
        errors=(40406, 40407, 42205, 42206, *_VERSION),
    ),
    Operation(
        "GET",
        f"{_OF_VERSION}/schema",
        "getVersionText",
        "The schema of a version alone",
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
        "Registers a version again with other tags, metadata and rules",
        "Registered",
        _FORM,
        "TagChange",
        (40901, 42201, 42205, 42210, *_VERSION),
    ),
    Operation(
        "POST",
        "/compatibility/subjects/{subject}/versions",
        "checkSubject",
        "Whether a schema may follow those of a subject",
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
        "Versions of all subjects with their schemas, a thousand at most",
        "ListedVersions",
        ("subjectPrefix", "deleted", "latestOnly", "ruleType", "aliases", *_PAGE),
    ),
    Operation("GET", "/schemas/types", "listTypes", "The kinds of schemas", "Names"),
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
        "A schema by its id, alone",
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
        "A schema by its guid, from whichever context",
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
    Operation("DELETE", "/config", "deleteConfig", "Removes it; answers what it was", "Config", errors=(42205,)),
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
        "Removes it; answers what it was",
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
        "Removes it; answers what it was",
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
        "Removes it; answers what it was",
        "Mode",
        ("recursive",),
        errors=(42205, *_NAMED),
    ),
)
