"""Where backups go, how often and how many: from options and environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from qcore.errors import ConfigError

DEFAULT_KEEP = 7
DEFAULT_INTERVAL_MS = 21_600_000
LEAST_INTERVAL_MS = 60_000
LONGEST_INTERVAL_MS = 31_536_000_000
DEFAULT_PREFIX = "backups/"
S3_NEEDED = "backups in S3 need the 's3' extra: pip install \"qcore-engine[s3]\""
DEFAULT_REGION = "us-east-1"

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
#: What boto3 takes as the name of a bucket, and as a region.
_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}|arn:[A-Za-z0-9:/._-]+", re.ASCII)
_REGION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?", re.ASCII)
_DURATION = re.compile(r"(\d{1,15})(ms|s|m|h|d)", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class BackupSettings:
    """Either ``directory`` or ``bucket`` is set. Secrets are not shown."""

    directory: str | None = None
    bucket: str | None = None
    prefix: str = DEFAULT_PREFIX
    keep: int = DEFAULT_KEEP
    interval_ms: int = DEFAULT_INTERVAL_MS
    #: Whether a server makes backups by itself.
    scheduled: bool = False
    region: str = DEFAULT_REGION
    endpoint: str | None = None
    virtual_hosted: bool = False
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    @property
    def place(self) -> str:
        """The place as an operator writes it."""
        return f"s3://{self.bucket}/{self.prefix}" if self.directory is None else self.directory

    def variables(self) -> dict[str, str]:
        """What a child process needs beside the environment to find the same settings."""
        to = self.place if self.directory is None else f"file://{quote(self.directory)}"
        return {"QCORE_BACKUP_TO": to, "QCORE_BACKUP_RETENTION": str(self.keep)}


def read_settings(
    environ: Mapping[str, str] | None = None,
    *,
    to: str | None = None,
    keep: str | None = None,
    interval: str | None = None,
    option: str = "--",
    only_scheduled: bool = False,
) -> BackupSettings | None:
    """Settings from the environment, under what options say; None when no place is named.

    ``to`` is a directory, ``file:///directory`` or ``s3://bucket/prefix``; ``option`` is how the
    names of options begin. With ``only_scheduled``, places that no schedule uses count as none.

    :raises ConfigError: names every option or variable that cannot be, all at once
    """
    env = os.environ if environ is None else environ
    problems: list[str] = []
    scheduled = _flag(env, "S3_BACKUP_ENABLED", problems)
    name, place = (f"{option}to", to) if to is not None else ("QCORE_BACKUP_TO", env.get("QCORE_BACKUP_TO"))
    found: dict[str, object] = {}
    if place or to is not None:
        found = _place(name, place or "", problems)
        scheduled = True
    elif bucket := _first(env, "S3_BUCKET", "AWS_BUCKET"):
        if not _BUCKET.fullmatch(bucket):
            problems.append("S3_BUCKET: expected the name of a bucket, of A-Z a-z 0-9 . _ -")
        found = {"bucket": bucket}
    elif scheduled:
        problems.append("S3_BACKUP_ENABLED is set and S3_BUCKET is not: expected the name of a bucket")
    elif not problems:
        return None
    if only_scheduled and not scheduled and not problems:
        return None
    found.setdefault("prefix", _prefix(env.get("S3_BACKUP_PREFIX", DEFAULT_PREFIX)))
    access = _first(env, "S3_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID")
    secret = _first(env, "S3_SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY")
    if (access is None) != (secret is None):
        missing = "S3_SECRET_ACCESS_KEY" if secret is None else "S3_ACCESS_KEY_ID"
        problems.append(f"{missing} is not set: expected both halves of the key or none")
    keep_name, keep = _named(f"{option}keep", keep, env, "QCORE_BACKUP_RETENTION", "S3_BACKUP_RETENTION")
    interval_name, interval = _named(
        f"{option}interval", interval, env, "QCORE_BACKUP_INTERVAL", "S3_BACKUP_INTERVAL"
    )
    settings = BackupSettings(
        keep=_whole(keep_name, keep, DEFAULT_KEEP, 1, 100_000, problems),
        interval_ms=_interval(interval_name, interval, problems),
        scheduled=scheduled,
        region=_region(env, problems),
        endpoint=_endpoint(env, problems),
        virtual_hosted=_flag(env, "S3_VIRTUAL_HOSTED_STYLE", problems),
        access_key=access,
        secret_key=secret,
        session_token=_first(env, "S3_SESSION_TOKEN", "AWS_SESSION_TOKEN"),
        **found,  # type: ignore[arg-type]
    )
    if problems:
        raise ConfigError(*problems)
    return settings


def _named(option: str, given: str | None, env: Mapping[str, str], *variables: str) -> tuple[str, str | None]:
    if given is not None:
        return option, given
    name = next((name for name in variables if env.get(name)), variables[-1])
    return name, env.get(name) or None


def _first(env: Mapping[str, str], *names: str) -> str | None:
    return next((env[name] for name in names if env.get(name)), None)


def _place(name: str, text: str, problems: list[str]) -> dict[str, object]:
    expected = "expected a directory, file:///directory or s3://bucket/prefix"
    parts = urlsplit(text)
    if parts.scheme == "s3":
        if _BUCKET.fullmatch(parts.netloc) and not parts.query and not parts.fragment:
            prefix = parts.path.lstrip("/")
            found: dict[str, object] = {"bucket": parts.netloc}
            if prefix:
                found["prefix"] = _prefix(prefix)
            return found
    elif parts.scheme == "file":
        if parts.netloc in ("", "localhost") and parts.path:
            return {"directory": unquote(parts.path)}
    elif text and "://" not in text:
        return {"directory": os.path.abspath(text)}
    # Not the whole text: somebody may have put a key into it.
    got = f"{parts.scheme}://..." if "://" in text else repr(text)
    problems.append(f"{name}: {expected}, got {got}")
    return {}


def _prefix(text: str) -> str:
    text = text.lstrip("/")
    return text if not text or text.endswith("/") else text + "/"


def _region(env: Mapping[str, str], problems: list[str]) -> str:
    text = _first(env, "S3_REGION", "AWS_REGION", "AWS_DEFAULT_REGION") or DEFAULT_REGION
    if not _REGION.fullmatch(text):
        problems.append(f"S3_REGION: expected a name like {DEFAULT_REGION}, got {text!r}")
    return text


def _endpoint(env: Mapping[str, str], problems: list[str]) -> str | None:
    text = _first(env, "S3_ENDPOINT", "AWS_ENDPOINT", "AWS_ENDPOINT_URL")
    if text is None:
        return None
    if "://" not in text:
        text = "https://" + text
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc:
        problems.append("S3_ENDPOINT: expected http://host:port or https://host:port")
    return text


def _flag(env: Mapping[str, str], name: str, problems: list[str]) -> bool:
    text = env.get(name, "").strip().lower()
    if text not in _TRUE + _FALSE:
        problems.append(f"{name}: expected 1 or 0, got {env[name]!r}")
    return text in _TRUE


def _whole(name: str, text: str | None, default: int, low: int, high: int, problems: list[str]) -> int:
    if text is None:
        return default
    if text.isascii() and text.isdigit() and low <= int(text[:20]) <= high:
        return int(text)
    problems.append(f"{name}: expected a whole number from {low} to {high}, got {text!r}")
    return default


def _interval(name: str, text: str | None, problems: list[str]) -> int:
    """ms; a number with a unit, as in 6h, is a duration for the variables that are ours."""
    if text is None:
        return DEFAULT_INTERVAL_MS
    bare = name == "S3_BACKUP_INTERVAL"
    found = _DURATION.fullmatch(text + "ms" if bare else text)
    if found is not None:
        ms = int(found[1]) * _UNIT_MS[found[2]]
        if LEAST_INTERVAL_MS <= ms <= LONGEST_INTERVAL_MS:
            return ms
    expected = "ms, 60000 or more" if bare else "a duration of a minute or more, like 30m or 6h"
    problems.append(f"{name}: expected {expected}, got {text!r}")
    return DEFAULT_INTERVAL_MS
