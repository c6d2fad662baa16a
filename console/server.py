"""Serves the console with granian: a worker process with threads, and this process, which watches it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from granian import Granian
from granian.constants import HTTPModes, Interfaces, RuntimeModes, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels

from headrace.console.access import ConsoleAccess
from headrace.console.addresses import is_secure_for_browsers, public_path, trusted_hosts
from headrace.console.errors import ConsoleUnusable
from headrace.registry.api.listening import ReservedPort, ServerCertificate, print_when_ready
from headrace.settings import Settings
from headrace.settings.values import is_loopback

if TYPE_CHECKING:
    from headrace.console.oidc import OidcLogin

logger = logging.getLogger(__name__)

WsgiApplication = Callable[..., Iterable[bytes]]

THREADS: Final = 8
THREADS_ADVICE: Final = "number of CPU cores"
"""Part of granian's warning about more threads than cores; threads that wait for other servers use no core."""
BACKLOG: Final = 128
CONNECTIONS_MAX: Final = 512
IDLE_S: Final = 60
HEADERS_BYTES_MAX: Final = 64 * 1024
GRACEFUL_STOP_S: Final = 5
PARENT_POLL_S: Final = 0.5
M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -8, -3, -1
"""Parameters of mallopt(3), from malloc.h."""
ARENAS_MAX: Final = 2
MMAP_BYTES_MIN: Final = 128 * 1024


def check_settings(settings: Settings) -> None:
    """Checks the settings of the console. Logs a warning if passwords would be sent unencrypted over a network.

    Raises:
        ConsoleUnusable: anonymous clients of a network could read the console and the setting that permits it is not
            set, or another setting is invalid.
    """
    own, users = settings.console, settings.registry.users
    is_local = is_loopback(own.listen.host)
    if not users and not is_local and own.allow_unauthenticated_from != "network":
        raise ConsoleUnusable(
            f"console.listen is {own.listen}, where anonymous clients could read names and counts; set registry.users "
            "to a file with users, or set console.allow_unauthenticated_from to network"
        )
    public_path(own)
    trusted_hosts(own)
    oidc_of(settings)
    if users and not is_local and not is_secure_for_browsers(own):
        logger.warning("passwords_sent_unencrypted, set console.tls_certificate listen=%s", own.listen)


def access_of(settings: Settings, users: Any) -> ConsoleAccess:
    """Returns the permissions of viewers. `users` is the content of `registry.users`; None if that is not set."""
    return ConsoleAccess(users, is_loopback(settings.console.listen.host), settings.loader, oidc_of(settings))


def oidc_of(settings: Settings) -> OidcLogin | None:
    """Returns the sign-in through an OpenID provider; None if the settings name none.

    Raises:
        ConsoleUnusable: a setting is missing or invalid, or Authlib is not installed.
    """
    own = settings.console
    if not own.oidc_issuer:
        return None
    if not own.oidc_client_id or not settings.registry.users:
        raise ConsoleUnusable(
            "console.oidc_issuer needs console.oidc_client_id, and registry.users: the file with the grants of roles"
        )
    if "openid" not in own.oidc_scopes.split():
        raise ConsoleUnusable(f"console.oidc_scopes is {own.oidc_scopes!r}; add the scope openid")
    try:
        from headrace.console.oidc import OidcLogin, is_provider_url

        if not is_provider_url(own.oidc_issuer):
            raise ConsoleUnusable(f"console.oidc_issuer is {own.oidc_issuer!r}; expected an https URL")
        return OidcLogin(settings)
    except ImportError as error:
        raise ConsoleUnusable(
            f"console.oidc_issuer needs the package {error.name}; install headrace[console-oidc]"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConsoleUnusable(
            f"console.oidc_client_secret_file {own.oidc_client_secret_file} cannot be read: {error}"
        ) from error


def serve(
    reserved: ReservedPort, make_application: Callable[[], WsgiApplication], tls: ServerCertificate | None
) -> int:
    """Serves until SIGTERM or SIGINT, or until the worker cannot start, and returns the exit code. Prints the ready
    line once requests are served.

    Args:
        reserved: the address to listen on.
        make_application: creates the application; called in the worker process.
        tls: the certificate for HTTPS; None serves HTTP.
    """
    server = Granian(
        "console",
        address=reserved.host,
        port=reserved.port,
        interface=Interfaces.WSGI,
        workers=1,
        runtime_mode=RuntimeModes.mt,
        blocking_threads=THREADS,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(header_read_timeout=IDLE_S * 1000, max_buffer_size=HEADERS_BYTES_MAX),
        websockets=False,
        backlog=BACKLOG,
        backpressure=CONNECTIONS_MAX,
        respawn_failed_workers=True,
        workers_kill_timeout=GRACEFUL_STOP_S,
        log_level=LogLevels.warning,
        # Granian's handlers write to standard output, which is reserved for the ready line.
        log_dictconfig={"handlers": {}, "formatters": {}, "loggers": {"_granian": {"propagate": True}}},
    )
    if tls is not None:
        server.build_ssl_context(tls.certificate, tls.key, None, SSLProtocols.tls12, None, [], client_verify=False)
    logging.getLogger("_granian").addFilter(lambda line: not server.interrupt_signal and THREADS_ADVICE not in line.msg)
    url = reserved.url("http" if tls is None else "https")
    started = multiprocessing.Semaphore(0)
    threading.Thread(target=print_when_ready, args=("console", url, "/healthz", 1, started), daemon=True).start()
    parent = os.getpid()

    def load() -> WsgiApplication:
        _limit_retained_memory()
        started.release()
        application = make_application()
        threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
        return application

    # The worker is a copy of this process. Objects that no collection visits stay in pages that both share.
    gc.freeze()
    try:
        server.serve(target_loader=load, wrap_loader=False)
    except SystemExit as end:
        return 0 if server.interrupt_signal else int(end.code or 0)
    return 0


def _limit_retained_memory() -> None:
    """Lets all threads share two arenas of glibc's allocator: each read of a source has a thread of its own, and with
    an arena each they would retain the memory of the largest read of each. Fixes the size from which an allocation has
    its own pages, which are returned when it is freed. By default glibc raises that size to the largest freed one,
    such as a commit of five megabytes."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        set_parameter = ctypes.CDLL(None).mallopt
        set_parameter(M_ARENA_MAX, ARENAS_MAX)
        set_parameter(M_MMAP_THRESHOLD, MMAP_BYTES_MIN)
        set_parameter(M_TRIM_THRESHOLD, MMAP_BYTES_MIN)


def _end_with_parent(parent: int) -> None:
    """Ends the worker when the parent process has died: nothing else would, and the port would stay in use."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    logger.warning("worker_stopped cause=parent_died")
    os.kill(os.getpid(), signal.SIGKILL)
