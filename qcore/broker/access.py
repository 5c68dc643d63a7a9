"""Who may talk to a server: its tokens."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable
from dataclasses import dataclass, field


class Tokens:
    """The tokens that are good, as digests under a key of this process.

    Digests have one length, whatever the tokens have, and all are compared, each in
    constant time: how long the answer takes tells nothing about a token, its length
    or how many there are to be guessed.
    """

    __slots__ = ("_digests", "_key")

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        self._key = os.urandom(32)
        self._digests: tuple[bytes, ...] = ()
        self.replace(tokens)

    def replace(self, tokens: Iterable[str]) -> None:
        """From now on these are good, and no others."""
        self._digests = tuple(dict.fromkeys(map(self._digest, tokens)))

    def _digest(self, token: str) -> bytes:
        return hashlib.blake2b(token.encode("utf-8", "surrogatepass"), key=self._key).digest()

    def find(self, token: object) -> bytes | None:
        """The digest of a good token, None for any other value."""
        if not isinstance(token, str):
            return None
        given = self._digest(token)
        good = False
        for digest in self._digests:
            good |= hmac.compare_digest(digest, given)
        return given if good else None

    def has(self, digest: bytes) -> bool:
        """Whether the token that :meth:`find` gave this digest for is still good."""
        return digest in self._digests

    def __bool__(self) -> bool:
        """Whether a token is asked for at all."""
        return bool(self._digests)

    def __repr__(self) -> str:
        return f"<{len(self._digests)} tokens>"


@dataclass(slots=True)
class SessionSettings:
    """What the sessions of one server share."""

    tokens: Tokens = field(default_factory=Tokens)
    max_metric_queues: int = 100
