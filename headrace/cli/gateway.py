"""`headrace gateway`: serves the HTTP gateway."""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace

from headrace.cli import registry_access
from headrace.cli.command import CommandError, add_settings_flags, examples, settings_from
from headrace.settings import Address, GatewaySettings, Settings
from headrace.settings.values import is_loopback

logger = logging.getLogger(__name__)


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    serve = verbs.add_parser(
        "serve",
        help="serve the HTTP API",
        description="Serves the API of Confluent's REST Proxy, versions 2 and 3, for programs that speak HTTP. "
        "`headrace up` serves it too. Users are those of registry.users, with its permissions. Without "
        "registry.users the gateway listens on loopback only, unless gateway.allow_unauthenticated_from is network.",
        epilog=examples("gateway serve", "gateway serve --gateway-listen 127.0.0.1:8090"),
    )
    add_settings_flags(serve, ("gateway.listen", "registry.url", "registry.users", "kafka.bootstrap_servers"))
    serve.set_defaults(run_verb=serve_gateway)


def run(args: argparse.Namespace) -> int:
    """Runs the verb of `headrace gateway` that the command line names, and returns its exit code."""
    return int(args.run_verb(args))


def serve_gateway(args: argparse.Namespace) -> int:
    settings = settings_from(args)
    from headrace.gateway.app import create_app
    from headrace.gateway.server import listening_socket, proxy_networks, serve
    from headrace.registry.errors import RegistryError

    own = settings.gateway
    check_access(settings)
    tls = registry_access.tls_of(own)
    try:
        listener = listening_socket(own.listen)
    except OSError as error:
        raise CommandError(
            f"gateway cannot listen on {own.listen}: {error.strerror or error}; stop the process that uses the port, "
            "or choose another address with --gateway-listen"
        ) from error
    bound = replace(own, listen=Address(own.listen.host, listener.getsockname()[1]))  # port 0 has become a real one
    settings = replace(settings, gateway=bound)
    try:
        proxies = proxy_networks(own.proxies)
        application = create_app(settings, registry_access.users_of(settings.registry))
    except (RegistryError, ValueError) as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(
            f"gateway.access_log {own.access_log} cannot be written: {error.strerror}; choose another file"
        ) from error
    return serve(listener, application, own.connections_max, tls, proxies)


def check_access(settings: Settings) -> None:
    """Checks that anonymous clients from a network can use the gateway only if a setting permits it. Logs a warning if
    passwords would be sent unencrypted over a network.

    Raises:
        CommandError: they could use it, and no setting permits it.
    """
    own: GatewaySettings = settings.gateway
    if is_loopback(own.listen.host):
        return
    if not settings.registry.users and own.allow_unauthenticated_from != "network":
        raise CommandError(
            f"gateway.listen is {own.listen}, where anonymous clients could write and read every topic; set "
            "registry.users (--users) to a file with users, or set gateway.allow_unauthenticated_from to network"
        )
    if settings.registry.users and not own.tls_certificate:
        logger.warning("passwords_sent_unencrypted, set gateway.tls_certificate listen=%s", own.listen)
