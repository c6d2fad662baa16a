"""Client of the schema registry for other packages and applications: standard library only, thread-safe.

    with RegistryClient("https://registry-1:8081,https://registry-2:8081", auth=BasicAuth("shop", password)) as client:
        client.register("orders-value", text)

`client` has the API calls, `transport` chooses servers and retries, `connections` holds the sockets, `proxies` selects
the proxy, `access` has URLs, credentials and TLS, `responses` parses results and errors, `cache` has immutable results,
`readiness` checks servers for a status.
"""

from headrace.registry.client.access import Auth, BasicAuth, BearerAuth, Tls
from headrace.registry.client.client import RegistryClient
from headrace.registry.client.responses import RegisteredSchema
from headrace.registry.client.transport import ATTEMPTS_MAX
from headrace.registry.domain import SchemaReference, SubjectVersion

__all__ = [
    "ATTEMPTS_MAX",
    "Auth",
    "BasicAuth",
    "BearerAuth",
    "RegisteredSchema",
    "RegistryClient",
    "SchemaReference",
    "SubjectVersion",
    "Tls",
]
