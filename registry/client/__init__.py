"""What the other packages, and applications, use to reach a running registry: standard library only, thread-safe.

    with RegistryClient("https://registry-1:8081,https://registry-2:8081", auth=BasicAuth("shop", password)) as client:
        client.register("orders-value", text)

`client` has the calls, `transport` decides which server is asked and when a call is repeated, `connections` holds the
sockets, `proxies` which of them go through a proxy, `access` what a server is told about who asks, `answers` turns
JSON into values and errors, `cache` keeps what never changes.
"""

from headrace.registry.client.access import Auth, BasicAuth, BearerAuth, Tls
from headrace.registry.client.responses import RegisteredSchema
from headrace.registry.client.client import RegistryClient
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
