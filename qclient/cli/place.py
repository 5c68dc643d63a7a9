"""Which server is meant: options, then the environment, then the local one."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qclient.tls import TLS
from qclient.url import DEFAULT_PORT, Target, parse_url
from qcore.errors import ConfigError
from qcore.server.tokenfile import read_tokens

HOST_VARIABLES = ("HOST", "BUNQUEUE_HOST", "BQ_HOST")
PORT_VARIABLES = ("TCP_PORT", "BUNQUEUE_TCP_PORT", "BQ_TCP_PORT")
#: Addresses that a server listens on and nobody can be reached at.
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
#: For who named no server, and so meant that of the default port.
START_ONE = "start one with `qcore start`, or name another with --url tcp://HOST:PORT or QCORE_URL"
#: Settings of TLS, and the options that give them.
_TLS_OPTIONS = {
    "ca_file": "tls_ca",
    "server_name": "tls_server_name",
    "cert_file": "tls_cert",
    "key_file": "tls_key",
}
#: Of the URLs, those that lead to a server.
SCHEMES = "tcp://host:port, tcps://host:port or unix:///path"


def add_place_options(parser: argparse.ArgumentParser) -> None:
    """The options that say where the server is; without defaults, so that they work before a verb too."""
    group = parser.add_argument_group("server", argument_default=argparse.SUPPRESS)
    group.add_argument(
        "--url", metavar="URL", help="tcp://host:port, tcps://host:port or unix:///path (QCORE_URL)"
    )
    group.add_argument("-H", "--host", metavar="HOST", help="host in place of a URL (127.0.0.1)")
    group.add_argument("-p", "--port", metavar="PORT", help=f"port in place of a URL ({DEFAULT_PORT})")
    group.add_argument("--socket", metavar="PATH", help="Unix socket in place of a URL")
    group.add_argument("--tls", action="store_true", help="the port speaks TLS, as with tcps://")
    group.add_argument("--tls-ca", metavar="FILE", help="certificates to trust in place of the system's")
    group.add_argument("--tls-no-verify", action="store_true", help="trust whoever answers")
    group.add_argument("--tls-server-name", metavar="NAME", help="name in the certificate, if not the host")
    group.add_argument("--tls-cert", metavar="FILE", help="certificate of the client")
    group.add_argument("--tls-key", metavar="FILE", help="its private key")
    group.add_argument("--token", metavar="TOKEN", help="token of the server (QCORE_TOKEN)")
    group.add_argument("--token-file", metavar="FILE", help="a file whose first line is the token")


def find_server(options: argparse.Namespace, environ: Mapping[str, str] | None = None) -> Target:
    """The server that the options name.

    :raises ConfigError: contradictory or unusable options; an embedded engine
    """
    env = os.environ if environ is None else environ
    url, path = getattr(options, "url", None), getattr(options, "socket", None)
    host, port = getattr(options, "host", None), getattr(options, "port", None)
    by_place = getattr(options, "url_by_place", None)
    if host == "":
        raise ConfigError("--host: expected an address or a name, got an empty text")
    ways = ["URL"] * (by_place is not None) + ["--url"] * (url is not None)
    ways += ["--socket"] * (path is not None)
    ways += ["--host or --port"] * (host is not None or port is not None)
    if len(ways) > 1:
        raise ConfigError(f"{' and '.join(ways)} name two servers, expected one")
    url = by_place if url is None else url
    if url is not None or (not ways and env.get("QCORE_URL")):
        url = env["QCORE_URL"] if url is None else url
        _check_scheme(url)
        target = parse_url(url, env)
    elif path is not None:
        if not path:
            raise ConfigError("--socket: expected a path, got an empty text")
        target = Target("unix", path=os.path.abspath(path), token=_token_of(env))
    else:
        target = _host_and_port(host, port, env, warn=not getattr(options, "json", False))
    return _with_token(_with_tls(target, options), options)


def _check_scheme(url: str) -> None:
    """Refuse in words of the command line what leads to no server; the rest is for the parser of URLs."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ConfigError(f"url {url.partition('?')[0]!r} has no scheme: expected {SCHEMES}")
    if scheme.lower() in ("memory", "sqlite"):
        raise ConfigError(f"{scheme.lower()}:// is no server: expected {SCHEMES}")
    if scheme.lower() not in ("tcp", "tcps", "unix"):
        raise ConfigError(f"unknown url scheme {scheme!r}: expected {SCHEMES}")


def _host_and_port(host: str | None, port: str | None, env: Mapping[str, str], *, warn: bool) -> Target:
    found = host or next((env[name] for name in HOST_VARIABLES if env.get(name)), None)
    if port is not None:
        number = _port(port)
        if number is None:
            raise ConfigError(f"--port: expected 1 to 65535, got {port!r}")
    else:
        name = next((name for name in PORT_VARIABLES if env.get(name)), None)
        number = _port(env[name]) if name else DEFAULT_PORT
        if number is None:
            # An orchestrator fills such variables with what it likes: BUNQUEUE_TCP_PORT=tcp://10.0.0.1:6789.
            if warn:
                print(f"qcore: {name} is no port, {DEFAULT_PORT} is used", file=sys.stderr)
            number = DEFAULT_PORT
    unnamed = found is None and number == DEFAULT_PORT
    found = found or "127.0.0.1"
    return Target(
        "tcp",
        host=_EVERY_ADDRESS.get(found, found),
        port=number,
        token=_token_of(env),
        hint=START_ONE if unnamed else "",
    )


def _port(text: str) -> int | None:
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else 0
    return number if 1 <= number <= 65535 else None


def _token_of(env: Mapping[str, str]) -> str | None:
    return parse_url("tcp://any", env).token


def _with_tls(target: Target, options: argparse.Namespace) -> Target:
    given: dict[str, Any] = {
        name: getattr(options, option)
        for name, option in _TLS_OPTIONS.items()
        if getattr(options, option, None) is not None
    }
    for name, text in given.items():
        if not text:
            raise ConfigError(f"--{_TLS_OPTIONS[name].replace('_', '-')}: expected a text, got an empty one")
    if getattr(options, "tls_no_verify", False):
        given["verify"] = False
    if not given and not getattr(options, "tls", False):
        return target
    if target.kind != "tcp":
        raise ConfigError(f"{target} has no TLS; expected tcps://host:port")
    tls = target.tls or TLS()
    if (given.get("cert_file", tls.cert_file) is None) != (given.get("key_file", tls.key_file) is None):
        raise ConfigError("--tls-cert and --tls-key: expected both or neither")
    if not given.get("verify", tls.verify) and given.get("ca_file", tls.ca_file) is not None:
        raise ConfigError("--tls-no-verify trusts anybody, and --tls-ca says whom: expected one of them")
    return replace(target, tls=replace(tls, **given))


def _with_token(target: Target, options: argparse.Namespace) -> Target:
    token, file = getattr(options, "token", None), getattr(options, "token_file", None)
    if token is not None and file is not None:
        raise ConfigError("--token and --token-file: expected one of them")
    if token == "":
        raise ConfigError("--token: expected a text, got an empty one")
    if file is not None:
        token = read_tokens(file)[0]
    return target if token is None else replace(target, token=token)
