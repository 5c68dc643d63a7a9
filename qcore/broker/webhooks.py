"""Addresses that are told of events: which there are, what they want, and which may be."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

import msgpack

from qcore.engine.table import EVENT_BITS
from qcore.errors import CommandError
from qcore.limits import (
    DEFAULT_MAX_WAITING_POST_BYTES,
    DEFAULT_MAX_WAITING_POSTS,
    DEFAULT_MAX_WEBHOOKS,
)
from qcore.wire.fields import shape

if TYPE_CHECKING:
    from qcore.broker.core import Broker
    from qcore.broker.posting import Poster

#: Names that hooks ask for, and the events that they stand for.
HOOK_EVENTS: Final = {
    "job.pushed": "pushed",
    "job.started": "pulled",
    "job.completed": "completed",
    "job.failed": "failed",
    "job.progress": "progress",
}
_BITS: Final = tuple(EVENT_BITS[event] for event in HOOK_EVENTS.values())
MAX_URL_CHARS: Final = 2048
MAX_NAMED: Final = 32  # of the names that a refusal repeats
MAX_NAMED_CHARS: Final = 100  # of each

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
#: (hook id, type of event, queue, job id, ms, what the engine emitted with it)
Notice: TypeAlias = tuple[str, str, str, str, int, Any]

#: Networks of IPv6 that carry an IPv4 address at their end, each for some kind of translation.
_CARRIERS: Final = tuple(
    ipaddress.ip_network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "::ffff:0:0:0/96")
)
#: Before the IPv4 address at the end of an address of ISATAP.
_ISATAP: Final = (0x00005EFE, 0x02005EFE)
_ULA: Final = ipaddress.ip_network("fc00::/7")
_THIS: Final = ipaddress.ip_network("0.0.0.0/8")
#: Where addresses of IPv6 that are for the whole network come from; the rest is reserved, or of some place.
_GLOBAL: Final = ipaddress.ip_network("2000::/3")
#: Carry an address of IPv4 through translators that are there for everybody.
_TRANSLATED: Final = tuple(ipaddress.ip_network(text) for text in ("64:ff9b::/96", "::ffff:0:0/96"))
#: Of special use by the registries of IANA (RFC 6890), whatever the version of Python knows of them.
_SPECIAL: Final = tuple(
    ipaddress.ip_network(text)
    for text in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "3fff::/20")
)


@dataclass(frozen=True, kw_only=True)
class HookSettings:
    """How hooks are delivered. ``allowed``: networks that may be told although they are not public."""

    allowed: tuple[Network, ...] = ()
    tries: int = 3
    pause_ms: int = 1000
    timeout_ms: int = 10_000  # of a whole post, from the connection to the end of the answer
    max_hooks: int = DEFAULT_MAX_WEBHOOKS
    max_waiting: int = DEFAULT_MAX_WAITING_POSTS
    max_waiting_bytes: int = DEFAULT_MAX_WAITING_POST_BYTES
    max_posts: int = 8  # at a time


@dataclass(slots=True)
class Hook:
    """One address with what it wants. Times in ms since the epoch."""

    id: str
    url: str
    events: tuple[str, ...]
    queue: str | None
    secret: str | None
    created_ms: int
    enabled: bool = True
    last_ms: int | None = None
    last_status: str | None = None  # of the latest delivery: an HTTP status, or why there was none
    n_delivered: int = 0
    n_failed: int = 0
    slow: bool = False  # its latest post took long; not stored

    @property
    def mask(self) -> int:
        """Bits of the events that it is told of."""
        if not self.enabled:
            return 0
        return sum(EVENT_BITS[HOOK_EVENTS[name]] for name in set(self.events))

    def packed(self) -> bytes:
        """The hook as it is stored."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name not in ("id", "slow")}
        packed: bytes = msgpack.packb(fields)
        return packed


@dataclass(slots=True)
class Hooks:
    """Every hook by its id, in the order in which they were added.

    A change costs the same however many there are.
    """

    settings: HookSettings = field(default_factory=HookSettings)
    by_id: dict[str, Hook] = field(default_factory=dict)
    #: Ids by queue (None: every queue) and bit of the event that they want.
    _wanting: dict[tuple[str | None, int], dict[str, None]] = field(default_factory=dict)
    _masks: dict[str, int] = field(default_factory=dict)  # by which each stands in there
    _n_wanting: dict[int, int] = field(default_factory=dict)

    def keep(self, hook: Hook) -> bool:
        """Add a hook, or heed what changed of it; whether the mask of its queue is another one."""
        self.by_id[hook.id] = hook
        return self._note(hook, hook.mask)

    def drop(self, hook_id: str) -> Hook | None:
        """Remove a hook."""
        hook = self.by_id.pop(hook_id, None)
        if hook is not None:
            self._note(hook, 0)
            self._masks.pop(hook_id, None)
        return hook

    def _note(self, hook: Hook, mask: int) -> bool:
        before = self._masks.get(hook.id, 0)
        self._masks[hook.id] = mask
        changed = False
        for bit in _BITS:
            if not (before ^ mask) & bit:
                continue
            ids = self._wanting.setdefault((hook.queue, bit), {})
            if mask & bit:
                changed |= not ids
                ids[hook.id] = None
                self._n_wanting[bit] = self._n_wanting.get(bit, 0) + 1
            else:
                del ids[hook.id]
                self._n_wanting[bit] -= 1
                if not ids:
                    del self._wanting[hook.queue, bit]
                    changed = True
        return changed

    def mask(self, queue: str | None) -> int:
        """Bits that hooks of one queue want, or with None those of every queue."""
        return sum(bit for bit in _BITS if (queue, bit) in self._wanting)

    @property
    def whole_mask(self) -> int:
        """Bits that any hook wants."""
        return sum(bit for bit in _BITS if self._n_wanting.get(bit))

    def wanting(self, bit: int, queue: str) -> Iterator[str]:
        """Ids of the hooks that are told of such an event of a queue."""
        yield from self._wanting.get((None, bit), ())
        yield from self._wanting.get((queue, bit), ())

    def restore(self, stored: list[tuple[int | str, bytes]]) -> int:
        """Bring back what was stored; how many could not be read."""
        bad = 0
        for key, packed in stored:
            try:
                fields: dict[str, Any] = msgpack.unpackb(packed)
                fields["events"] = tuple(name for name in fields["events"] if name in HOOK_EVENTS)
                self.keep(Hook(id=str(key), **fields))
            except (ValueError, TypeError, KeyError):
                bad += 1
        return bad


def unwrapped(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one that only carries it."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        number = int(address)
        if (
            any(address in network for network in _CARRIERS)
            or number >> 32 & 0xFFFFFFFF in _ISATAP
            or (number >> 32 == 0 and number > 1)
        ):
            return ipaddress.IPv4Address(number & 0xFFFFFFFF)
    return address


def forbidden(address: Address, allowed: tuple[Network, ...] = ()) -> str | None:
    """Why an address may not be told anything, as a kind of address; None if it may."""
    inner = unwrapped(address)
    if any(one in network for network in allowed for one in (address, inner)):
        return None
    if inner.is_unspecified or inner in _THIS:
        return "unspecified IP"
    if inner.is_loopback:
        return "loopback IP"
    if inner in _ULA:
        return "private (ULA) IP"
    if inner.is_link_local:
        return "link-local IP"
    if inner.is_private or inner.is_multicast or not inner.is_global:
        return "private IP"
    if any(one in network for network in _SPECIAL for one in (address, inner)):
        return "private IP"
    if isinstance(address, ipaddress.IPv6Address) and not any(
        address in network for network in (_GLOBAL, *_TRANSLATED)
    ):
        return "private IP"
    return None


def literal(host: str) -> Address | None:
    """The address that a host is in any of the forms that resolvers take; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))  # 2130706433, 0x7f.1, 127.1
    except OSError:
        return None


def split_url(url: str) -> SplitResult:
    """The parts of a checked URL."""
    return urlsplit(url)


def url_host(url: object) -> str:
    """Return the host of a URL that has the form of one for hooks, as it is looked up.

    :raises CommandError: it has not, with the protocol's text
    """
    if not url or not isinstance(url, str):
        raise CommandError("Webhook URL is required")
    if len(url) > MAX_URL_CHARS:
        raise CommandError(f"Webhook URL too long (max {MAX_URL_CHARS} characters)")
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        port_ok = parts.port is None or parts.port > 0
        encoded = host if ":" in host else host.encode("idna").decode()
    except (ValueError, UnicodeError):
        raise CommandError("Invalid URL format") from None
    if any(char <= " " or char == "\x7f" for char in url) or not parts.scheme or not port_ok:
        raise CommandError("Invalid URL format")
    if parts.scheme not in ("http", "https"):
        raise CommandError("Webhook URL must use http or https protocol")
    if not _is_host(encoded) or ("[" in parts.netloc) != (":" in encoded):
        raise CommandError("Invalid URL format")
    return encoded


def _is_host(host: str) -> bool:
    """Whether it is an address, or a name that can be looked up."""
    if literal(host) is not None:
        return True
    # A last label that is a number makes an address of it, and this one is none.
    return _NAME.fullmatch(host) is not None and _NUMBER.fullmatch(host.rpartition(".")[2]) is None


def shown_url(url: str) -> str:
    """The URL of a hook without the user and the password in it."""
    parts = split_url(url)
    _, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"***@{host}").geturl() if at else url


def check_url(url: object, allowed: tuple[Network, ...] = ()) -> str:
    """Return a URL that a hook may have. What its name resolves to is checked at each connection.

    :raises CommandError: it may not, with the protocol's text
    """
    encoded = url_host(url)
    assert isinstance(url, str)
    address = literal(encoded)
    if address is not None and any(address in network for network in allowed):
        return url
    if encoded in ("localhost", "127.0.0.1", "::1") or encoded.endswith(".localhost"):
        raise CommandError("Webhook URL cannot point to localhost")
    if address is not None and (why := forbidden(address, allowed)) is not None:
        raise CommandError(f"Webhook URL cannot point to {why}")
    if encoded == "internal" or encoded.endswith(".internal"):
        raise CommandError("Webhook URL cannot point to cloud metadata endpoints")
    return url


def check_events(events: list[object]) -> tuple[str, ...]:
    """Return the names of events that a hook may ask for.

    :raises CommandError: some are none
    """
    bad = [
        _cut(name) if isinstance(name, str) else shape(name)
        for name in events
        if not isinstance(name, str) or name not in HOOK_EVENTS
    ]
    if bad:
        del bad[MAX_NAMED:]
        raise CommandError(
            f"Invalid webhook event(s): {', '.join(bad)}. Valid: {', '.join(HOOK_EVENTS)}", "AddWebhook"
        )
    return tuple(str(name) for name in events)


def _cut(name: str) -> str:
    return name if len(name) <= MAX_NAMED_CHARS else name[:MAX_NAMED_CHARS] + "..."


class LazyPoster:
    """Takes what hooks are to be told for :class:`~qcore.broker.posting.Poster`, which the first of it makes.

    The modules for HTTP and TLS are of no use to an engine without hooks.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._poster: Poster | None = None
        self._closed = False
        self._hurried = False
        broker.deliver = self._submit

    def _submit(self, notices: Sequence[Notice]) -> None:
        # Called under the broker's lock, so by one thread at a time.
        if self._poster is None and not self._closed:
            from qcore.broker.posting import Poster

            self._poster = Poster(self._broker)
            if self._hurried:
                self._poster.hurry()
        if self._poster is not None:
            self._poster.submit(notices)

    def hurry(self) -> None:
        """Let :meth:`close` wait for nothing. May be called from a signal handler."""
        self._hurried = True
        if self._poster is not None:
            self._poster.hurry()

    def close(self, wait_s: float = 2.0) -> None:
        """Tell nobody anything more; posts that are under way get a moment to end."""
        self._closed = True
        if self._poster is not None:
            self._poster.close(wait_s)
