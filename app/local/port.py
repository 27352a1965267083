"""Whether the dashboard's address is free, and whether something answers there."""

from __future__ import annotations

import contextlib
import errno
import http.client
import socket

from db.errors import InputError


def check_free(host: str, port: int) -> None:
    """Binds the address and lets it go.

    Raises:
        InputError: the port is taken, or the address is not this machine's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except OSError as error:
        raise InputError(f"the host to listen on must be an address of this machine, given {host!r}: {error}") from None
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise InputError(
                    f"port {port} on {host} is taken: expected a free one, choose it with --port or MALLEUS_PORT"
                ) from None
            raise InputError(f"cannot listen on {host} port {port}: {error.strerror}") from None


def answers(host: str, port: int, path: str, *, timeout_s: float = 1.0) -> bool:
    """Whether an HTTP server says 200 there."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection(reachable(host), port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        finally:
            connection.close()
    return False


def reachable(host: str) -> str:
    """The address at which this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
