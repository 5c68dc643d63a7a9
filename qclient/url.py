"""Where the engine runs, as a URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from qclient.tls import TLS
from qcore.errors import ConfigError
from qcore.limits import MAX_COMPLETED_RETENTION_MS, MIN_COMPLETED_RETENTION_MS

DEFAULT_PORT = 6789
RETENTION_VARIABLE = "BUNQUEUE_COMPLETED_RETENTION_MS"
Level = Literal["buffered", "committed", "synced"]
LEVELS: tuple[Level, ...] = get_args(Level)
_TRUE = frozenset({"1", "true", "yes", "on"})

#: For who named no engine, and so meant that of the default port.
START_ONE = "start one with `qcore start`, or pass url='sqlite:///jobs.db'"


@dataclass(frozen=True, slots=True)
class Target:
    """One engine: ``memory``, ``sqlite`` with a path, ``tcp`` with host and port, ``unix`` with a path.

    ``adds`` and ``changes`` are levels of durability of a file, ``keep_completed_ms`` the time for
    which it keeps completed jobs, 0 for ever, ``journal`` whether it keeps events; None = whatever
    it is opened with. ``hint`` is what to do if nobody answers.
    """

    kind: str
    path: str | None = None
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    token: str | None = None
    adds: Level | None = None
    changes: Level | None = None
    keep_completed_ms: int | None = None
    journal: bool | None = None
    hint: str = ""
    tls: TLS | None = None

    @property
    def embedded(self) -> bool:
        """Whether the engine lives in this process."""
        return self.kind not in ("tcp", "unix")

    def __str__(self) -> str:
        """Never shows the token."""
        if self.kind == "tcp":
            host = f"[{self.host}]" if ":" in self.host else self.host
            return f"tcp{'s' if self.tls else ''}://{host}:{self.port}"
        if self.kind == "unix":
            return f"unix://{self.path}"
        return "memory://" if self.path is None else f"sqlite:///{self.path}"

    __repr__ = __str__


def parse_url(url: str, environ: Mapping[str, str] | None = None) -> Target:
    """Read a URL of one of the served forms; anything else is a ``ConfigError``."""
    env = os.environ if environ is None else environ
    if not isinstance(url, str):
        raise TypeError(f"url must be a string, not {type(url).__name__}")
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator:
        raise ConfigError(
            f"url {url.partition('?')[0]!r} has no scheme: memory://, sqlite:///file, "
            "tcp://host:port, tcps://host:port or unix:///path"
        )
    if scheme == "memory":
        if rest:
            raise ConfigError("memory:// takes nothing after the slashes")
        return Target("memory")
    if scheme == "sqlite":
        path, _, query = rest.partition("?")
        settings = _file_settings(query, env)
        if not path.startswith("/") or path == "/":
            raise ConfigError("sqlite url must be sqlite:///relative.db or sqlite:////absolute.db")
        return Target("sqlite", path=os.path.realpath(unquote(path[1:])), **settings)
    if scheme in ("tcp", "tcps"):
        return _parse_tcp(scheme, url, env)
    if scheme == "unix":
        return _parse_unix(rest, env)
    raise ConfigError(f"unknown url scheme {scheme!r}: memory, sqlite, tcp, tcps and unix are served")


def _parse_tcp(scheme: str, url: str, env: Mapping[str, str]) -> Target:
    try:
        parts = urlsplit(url)
    except ValueError as exc:
        raise ConfigError(f"{scheme} url is not usable: {exc}") from None
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError as exc:
        raise ConfigError(f"port of the {scheme} url is not usable: {exc}") from None
    if parts.path not in ("", "/") or parts.username is not None:
        raise ConfigError(f"{scheme} url must be {scheme}://host:port, with ?token= if the server wants one")
    settings = _settings(parts.query)
    tls = _tls(settings) if scheme == "tcps" else None
    token = _token_of(settings, scheme, env)
    return Target("tcp", host=parts.hostname or "127.0.0.1", port=port, token=token, tls=tls)


def _tls(settings: dict[str, str]) -> TLS:
    """Take the settings of TLS out."""
    verify = settings.pop("verify", "yes").lower()
    if verify not in ("yes", "no", "true", "false", "1", "0", "on", "off"):
        raise ConfigError(f"tcps url: verify is yes or no, not {verify!r}")
    names = ("ca_file", "server_name", "cert_file", "key_file")
    return TLS(verify=verify in _TRUE, **{name: settings.pop(name) for name in names if settings.get(name)})


def _parse_unix(rest: str, env: Mapping[str, str]) -> Target:
    path, _, query = rest.partition("?")
    path = unquote(path)
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise ConfigError("unix url must be unix:///absolute/path, with ?token= if the server wants one")
    return Target("unix", path=path, token=_token_of(_settings(query), "unix", env))


def _settings(query: str) -> dict[str, str]:
    return dict(parse_qsl(query, keep_blank_values=True))


def _token_of(settings: dict[str, str], scheme: str, env: Mapping[str, str]) -> str | None:
    token = settings.pop("token", None)
    if settings:
        raise ConfigError(f"{scheme} url: unknown setting {next(iter(settings))!r}")
    return token or _token(env)


def _file_settings(query: str, env: Mapping[str, str]) -> dict[str, Any]:
    """The levels of durability and the like that the URL names, else those of the environment."""
    settings = dict(parse_qsl(query, keep_blank_values=True))
    found: dict[str, Any] = {}
    for name in ("adds", "changes"):
        variable = f"QCORE_{name.upper()}"
        where, level = f"sqlite url: {name}", settings.pop(name, None)
        if level is None:
            where, level = variable, env.get(variable) or None
        if level is not None and level not in LEVELS:
            raise ConfigError(f"{where}: expected one of {', '.join(LEVELS)}, got {level!r}")
        found[name] = level
    where, text = "sqlite url: keep_completed", settings.pop("keep_completed", None)
    unit_ms = 1000
    if text is None:
        where, text, unit_ms = RETENTION_VARIABLE, env.get(RETENTION_VARIABLE) or None, 1
    found["keep_completed_ms"] = None if text is None else _retention_ms(where, text, unit_ms)
    journal = settings.pop("journal", None) or env.get("QCORE_JOURNAL") or None
    found["journal"] = None if journal is None else journal.lower() in _TRUE
    if settings:
        raise ConfigError(f"sqlite url: unknown setting {next(iter(settings))!r}")
    return found


def _retention_ms(where: str, text: str, unit_ms: int) -> int:
    """A time for which completed jobs are kept, in ms; 0 = for ever."""
    if text.lower() == "off":
        return 0
    low, high = MIN_COMPLETED_RETENTION_MS // unit_ms, MAX_COMPLETED_RETENTION_MS // unit_ms
    if not text.isdecimal() or not low <= int(text) <= high:
        unit = "s" if unit_ms == 1000 else "ms"
        raise ConfigError(f"{where}: expected off or {low} to {high} {unit}, got {text!r}")
    return int(text) * unit_ms


def _token(env: Mapping[str, str]) -> str | None:
    return env.get("QCORE_TOKEN") or env.get("BQ_TOKEN") or env.get("BUNQUEUE_TOKEN") or None


def resolve(url: str | None, environ: Mapping[str, str] | None = None) -> Target:
    """Find the engine: ``url``, ``QCORE_URL``, ``BUNQUEUE_EMBEDDED``, then the default port.

    With ``BUNQUEUE_EMBEDDED=1`` the data path variable names the file; without it
    the engine keeps everything in memory.
    """
    env = os.environ if environ is None else environ
    if url is not None:
        return parse_url(url, env)
    if env.get("QCORE_URL"):
        return parse_url(env["QCORE_URL"], env)
    if env.get("BUNQUEUE_EMBEDDED", "").lower() in _TRUE:
        path = env.get("QCORE_DATA_PATH") or env.get("BUNQUEUE_DATA_PATH") or env.get("BQ_DATA_PATH")
        return (
            Target("sqlite", path=os.path.realpath(path), **_file_settings("", env))
            if path
            else Target("memory")
        )
    return Target("tcp", token=_token(env), hint=START_ONE)
