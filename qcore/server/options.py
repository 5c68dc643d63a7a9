"""Options of the server: command line over environment over defaults."""

from __future__ import annotations

import argparse
import importlib.util
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from qcore.backup.settings import S3_NEEDED, BackupSettings, read_settings
from qcore.broker.webhooks import Network
from qcore.errors import ConfigError
from qcore.limits import (
    DEFAULT_COMPLETED_RETENTION_MS,
    DEFAULT_MAX_COMPLETED_JOBS,
    DEFAULT_MAX_WAITING_DEPS,
    DEFAULT_MAX_WAITING_POST_BYTES,
    DEFAULT_MAX_WAITING_POSTS,
    DEFAULT_MAX_WAITS,
    DEFAULT_MAX_WEBHOOKS,
    MAX_COMPLETED_RETENTION_MS,
    MIN_COMPLETED_RETENTION_MS,
    MIN_WAITING_POST_BYTES,
)
from qcore.server.tokenfile import read_tokens

Level = Literal["buffered", "committed", "synced"]
LEVELS: tuple[Level, ...] = ("buffered", "committed", "synced")
DATA_VARIABLES = ("BUNQUEUE_DATA_PATH", "BQ_DATA_PATH", "DATA_PATH", "SQLITE_PATH")


_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of a server, each with the name of the option or variable that it came from."""

    cert: str
    key: str
    client_ca: str | None = None
    cert_option: str = "--tls-cert"
    key_option: str = "--tls-key"
    client_ca_option: str = "--tls-client-ca"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Everything a server needs to know. Times in ms, sizes in bytes."""

    host: str = "127.0.0.1"
    port: int = 6789
    socket: str | None = None
    http_port: int | None = None
    data: str | None = None
    tokens: tuple[str, ...] = field(default=(), repr=False)
    #: Of those, the ones that were given as they are; the others are in the file.
    fixed_tokens: tuple[str, ...] = field(default=(), repr=False)
    token_file: str | None = None
    token_file_option: str = "--token-file"
    tls: TlsFiles | None = None
    tls_handshake_ms: int = 10_000
    allow_unauthenticated: bool = False
    adds: Level = "buffered"
    changes: Level = "committed"
    rate_max: int = 0
    rate_window_ms: int = 60_000
    max_waits: int = DEFAULT_MAX_WAITS
    partial_frame_ms: int = 60_000
    keepalive_s: int = 15
    max_write_queue_bytes: int = 67_108_864
    max_completed_jobs: int = DEFAULT_MAX_COMPLETED_JOBS
    completed_retention_ms: int | None = DEFAULT_COMPLETED_RETENTION_MS  # None: for ever
    max_waiting_deps: int = DEFAULT_MAX_WAITING_DEPS
    journal: bool = False
    max_queue_events: int = 10_000
    max_metric_minutes: int = 20_160
    max_metric_queues: int = 100
    webhook_tries: int = 3
    webhook_pause_ms: int = 1000
    webhook_allowed: tuple[Network, ...] = ()
    max_webhooks: int = DEFAULT_MAX_WEBHOOKS
    max_waiting_posts: int = DEFAULT_MAX_WAITING_POSTS
    max_waiting_post_bytes: int = DEFAULT_MAX_WAITING_POST_BYTES
    shutdown_timeout_ms: int = 30_000
    backups: BackupSettings | None = None
    log_level: str = "info"
    watch_stdin: bool = False

    def read_tokens_again(self) -> tuple[str, ...]:
        """The tokens that hold now.

        :raises ConfigError: the file cannot be read or holds no token
        """
        assert self.token_file is not None
        return self.fixed_tokens + read_tokens(self.token_file, self.token_file_option)


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing a usage and leaving: the caller has one clear line to say."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parser(prog: str = "qcore start") -> argparse.ArgumentParser:
    """The command line of ``qcore start``."""
    p = _Parser(prog=prog, description="Run the job server.", allow_abbrev=False)
    p.add_argument("--data", metavar="FILE", help="SQLite file that keeps the jobs; none: memory only")
    p.add_argument("--host", help="address to listen on (127.0.0.1)")
    p.add_argument("--port", "--tcp-port", help="TCP port, 0 for a free one (6789)")
    p.add_argument("--socket", metavar="PATH", help="a Unix socket to listen on as well")
    p.add_argument("--http-port", help="port for HTTP, which this version does not have")
    p.add_argument("--token", action="append", metavar="TOKEN", help="a token that clients must present")
    p.add_argument("--token-file", metavar="FILE", help="a file with such tokens, one a line")
    p.add_argument("--auth-tokens", metavar="LIST", help="such tokens, separated by commas")
    p.add_argument("--tls-cert", metavar="FILE", help="certificate, with which the port speaks TLS")
    p.add_argument("--tls-key", metavar="FILE", help="its private key")
    p.add_argument(
        "--tls-client-ca", metavar="FILE", help="clients need a certificate signed by one of these"
    )
    p.add_argument(
        "--allow-unauthenticated", action="store_true", help="listen beyond loopback without a token"
    )
    p.add_argument("--adds", choices=LEVELS, help="durability of plain adds (buffered)")
    p.add_argument("--changes", choices=LEVELS, help="durability of everything else (committed)")
    p.add_argument("--journal", action="store_true", help="keep the events of queues, not only their number")
    p.add_argument("--shutdown-timeout-ms", help="bound of a graceful stop (30000)")
    p.add_argument(
        "--backup-to", metavar="PLACE", help="a directory or s3://bucket/prefix for backups (none)"
    )
    p.add_argument("--backup-interval", metavar="DURATION", help="how often, like 30m or 6h (6h)")
    p.add_argument("--backup-keep", metavar="N", help="how many backups stay (7)")
    p.add_argument("--log-level", help="debug, info, warning or error (info)")
    p.add_argument("--watch-stdin", action="store_true", help="stop when standard input is closed")
    return p


def parse(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Options:
    """Options from arguments and environment.

    :raises ConfigError: names the option or variable, what was expected and what came
    """
    env = os.environ if environ is None else environ
    a = parser().parse_args(list(argv))
    data = a.data if a.data is not None else next((env[v] for v in DATA_VARIABLES if env.get(v)), None)
    if data == "":
        raise ConfigError("--data: expected a file name, got an empty text")
    socket_path = a.socket if a.socket is not None else env.get("TCP_SOCKET_PATH") or None
    if socket_path == "":
        raise ConfigError("--socket: expected a path, got an empty text")
    tokens, token_file, token_file_option = _tokens(a, env)
    options = Options(
        host=_host(a.host, env),
        port=_number("--port", a.port, "TCP_PORT", env, 6789, 0, 65535),
        socket=socket_path,
        http_port=_port_or_none(a.http_port, env),
        data=data,
        tokens=tokens if token_file is None else tokens + read_tokens(token_file, token_file_option),
        fixed_tokens=tokens,
        token_file=token_file,
        token_file_option=token_file_option,
        tls=_tls(a, env),
        tls_handshake_ms=_number(None, None, "QCORE_TLS_HANDSHAKE_TIMEOUT_MS", env, 10_000, 1, 86_400_000),
        allow_unauthenticated=a.allow_unauthenticated,
        adds=_level("--adds", a.adds, "QCORE_ADDS", env, "buffered"),
        changes=_level("--changes", a.changes, "QCORE_CHANGES", env, "committed"),
        journal=a.journal or env.get("QCORE_JOURNAL", "").lower() in ("1", "true", "yes", "on"),
        rate_max=_number(None, None, "RATE_LIMIT_MAX_REQUESTS", env, 0, 0, 2**53),
        rate_window_ms=_number(None, None, "RATE_LIMIT_WINDOW_MS", env, 60_000, 1, 86_400_000),
        max_waits=_number(None, None, "QCORE_MAX_WAITS", env, DEFAULT_MAX_WAITS, 1, 2**31),
        keepalive_s=_number(None, None, "TCP_KEEPALIVE_S", env, 15, 0, 7200),
        partial_frame_ms=_number(None, None, "TCP_IDLE_TIMEOUT_MS", env, 60_000, 0, 86_400_000),
        max_write_queue_bytes=_number(None, None, "TCP_MAX_WRITE_QUEUE_BYTES", env, 67_108_864, 0, 2**40),
        max_completed_jobs=_number(
            None, None, "BUNQUEUE_MAX_COMPLETED_JOBS", env, DEFAULT_MAX_COMPLETED_JOBS, 1, 2**31
        ),
        completed_retention_ms=_retention_ms("BUNQUEUE_COMPLETED_RETENTION_MS", env),
        max_waiting_deps=_number(
            None, None, "BUNQUEUE_MAX_WAITING_DEPS", env, DEFAULT_MAX_WAITING_DEPS, 0, 2**31
        ),
        max_queue_events=_number(None, None, "BUNQUEUE_MAX_QUEUE_EVENTS", env, 10_000, 0, 2**31),
        max_metric_minutes=_number(None, None, "BUNQUEUE_MAX_METRIC_MINUTES", env, 20_160, 0, 2**31),
        max_metric_queues=_number(None, None, "METRICS_MAX_QUEUES", env, 100, 0, 2**31),
        webhook_tries=_number(None, None, "WEBHOOK_MAX_RETRIES", env, 3, 1, 100),
        webhook_pause_ms=_number(None, None, "WEBHOOK_RETRY_DELAY_MS", env, 1000, 0, 3_600_000),
        webhook_allowed=_networks("QCORE_WEBHOOK_ALLOW", env),
        max_webhooks=_number(None, None, "QCORE_MAX_WEBHOOKS", env, DEFAULT_MAX_WEBHOOKS, 0, 2**31),
        max_waiting_posts=_number(
            None, None, "QCORE_MAX_WAITING_POSTS", env, DEFAULT_MAX_WAITING_POSTS, 1, 2**31
        ),
        max_waiting_post_bytes=_number(
            None,
            None,
            "QCORE_MAX_WAITING_POST_BYTES",
            env,
            DEFAULT_MAX_WAITING_POST_BYTES,
            MIN_WAITING_POST_BYTES,
            2**40,
        ),
        shutdown_timeout_ms=_number(
            "--shutdown-timeout-ms", a.shutdown_timeout_ms, "SHUTDOWN_TIMEOUT_MS", env, 30_000, 0, 86_400_000
        ),
        backups=_backups(a, env, data),
        log_level=_log_level(a.log_level, env),
        watch_stdin=a.watch_stdin,
    )
    if not options.tokens and not options.allow_unauthenticated and not _is_loopback(options.host):
        raise ConfigError(
            f"host {options.host} is reachable from other machines: give --token, --token-file "
            "or AUTH_TOKENS, or say --allow-unauthenticated"
        )
    return options


def _backups(a: argparse.Namespace, env: Mapping[str, str], data: str | None) -> BackupSettings | None:
    settings = read_settings(
        env,
        to=a.backup_to,
        keep=a.backup_keep,
        interval=a.backup_interval,
        option="--backup-",
        only_scheduled=True,
    )
    if settings is None:
        if a.backup_keep is not None or a.backup_interval is not None:
            raise ConfigError("--backup-to: expected a place for the backups, got none")
        return None
    if data is None:
        raise ConfigError(f"backups to {settings.place} need --data FILE")
    if settings.bucket is not None and importlib.util.find_spec("boto3") is None:
        raise ConfigError(S3_NEEDED)
    return settings


def _host(given: str | None, env: Mapping[str, str]) -> str:
    name, host = ("--host", given) if given is not None else ("HOST", env.get("HOST") or "127.0.0.1")
    try:
        host.encode("idna")  # as it will be looked up
        usable = bool(host)
    except UnicodeError:
        usable = False
    if not usable:
        raise ConfigError(f"{name}: expected an address or a name of this machine, got {host!r}")
    return host


def _tokens(a: argparse.Namespace, env: Mapping[str, str]) -> tuple[tuple[str, ...], str | None, str]:
    """What the command line says, else what the environment says: tokens, a file, who named the file."""
    if a.token is None and a.token_file is None and a.auth_tokens is None:
        listed, source = env.get("AUTH_TOKENS", ""), "AUTH_TOKENS"
        given: list[str] = []
        file, option = env.get("AUTH_TOKENS_FILE") or None, "AUTH_TOKENS_FILE"
    else:
        listed, source = a.auth_tokens or "", "--auth-tokens"
        given, file, option = a.token or [], a.token_file, "--token-file"
    tokens = tuple(t.strip() for t in given)
    if any(not t for t in tokens):
        raise ConfigError("--token: expected a text, got an empty one")
    found = tuple(t.strip() for t in listed.split(",") if t.strip())
    if (listed or a.auth_tokens is not None) and not found:
        # Who names a list wants a closed server; an unset variable is often an empty one.
        raise ConfigError(f"{source}: expected tokens separated by commas, got none")
    tokens += found
    return tokens, file, option


def _tls(a: argparse.Namespace, env: Mapping[str, str]) -> TlsFiles | None:
    """The files of TLS: certificate and key, or neither."""
    cert, cert_option = _file(a.tls_cert, "--tls-cert", "TLS_CERT_FILE", env)
    key, key_option = _file(a.tls_key, "--tls-key", "TLS_KEY_FILE", env)
    ca, ca_option = _file(a.tls_client_ca, "--tls-client-ca", "QCORE_TLS_CLIENT_CA_FILE", env)
    if cert is None and key is None:
        if ca is not None:
            raise ConfigError(f"{ca_option} needs --tls-cert and --tls-key")
        return None
    if cert is None:
        raise ConfigError(f"{key_option} without a certificate: give --tls-cert or TLS_CERT_FILE as well")
    if key is None:
        raise ConfigError(f"{cert_option} without a key: give --tls-key or TLS_KEY_FILE as well")
    return TlsFiles(cert, key, ca, cert_option, key_option, ca_option)


def _file(given: str | None, option: str, variable: str, env: Mapping[str, str]) -> tuple[str | None, str]:
    """A file that an option or a variable names, and which of them did."""
    if given == "":
        raise ConfigError(f"{option}: expected a file name, got an empty text")
    return (given, option) if given is not None else (env.get(variable) or None, variable)


def _number(
    option: str | None,
    given: str | None,
    variable: str,
    env: Mapping[str, str],
    default: int,
    low: int,
    high: int,
) -> int:
    name, text = (option, given) if given is not None else (variable, env.get(variable) or None)
    if text is None:
        return default
    if _WHOLE.fullmatch(text) is None:
        raise ConfigError(f"{name}: expected a whole number from {low} to {high}, got {text!r}")
    value = int(text)
    if not low <= value <= high:
        raise ConfigError(f"{name}: expected {low} to {high}, got {value}")
    return value


def _retention_ms(variable: str, env: Mapping[str, str]) -> int | None:
    """A time in ms; None = for ever."""
    if env.get(variable, "").lower() == "off":
        return None
    low, high = MIN_COMPLETED_RETENTION_MS, MAX_COMPLETED_RETENTION_MS
    return _number(None, None, variable, env, DEFAULT_COMPLETED_RETENTION_MS, low, high)


def _networks(variable: str, env: Mapping[str, str]) -> tuple[Network, ...]:
    texts = [text.strip() for text in env.get(variable, "").split(",") if text.strip()]
    try:
        return tuple(ipaddress.ip_network(text) for text in texts)
    except ValueError as error:
        raise ConfigError(f"{variable}: expected networks such as 10.1.0.0/16, got {error}") from None


def _port_or_none(given: str | None, env: Mapping[str, str]) -> int | None:
    if given is None and not env.get("HTTP_PORT"):
        return None
    port = _number("--http-port", given, "HTTP_PORT", env, 0, 0, 65535)
    if given is not None:
        raise ConfigError("--http-port: this version has no HTTP")
    return port


def _level(option: str, given: Level | None, variable: str, env: Mapping[str, str], default: Level) -> Level:
    if given is not None:
        return given
    text = env.get(variable) or default
    for level in LEVELS:
        if text == level:
            return level
    raise ConfigError(f"{variable}: expected one of {', '.join(LEVELS)}, got {text!r}")


def _log_level(given: str | None, env: Mapping[str, str]) -> str:
    name, text = (
        ("--log-level", given) if given is not None else ("LOG_LEVEL", env.get("LOG_LEVEL") or "info")
    )
    level = text.lower()
    level = {"warn": "warning", "silent": "critical", "none": "critical"}.get(level, level)
    if level not in ("debug", "info", "warning", "error", "critical"):
        raise ConfigError(f"{name}: expected debug, info, warning or error, got {text!r}")
    return level


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
