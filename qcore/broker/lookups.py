"""Addresses of names within a time, which resolvers know nothing of: each lookup has a thread of its own."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass
from typing import Any, TypeAlias

from qcore.broker.webhooks import literal
from qcore.limits import MAX_LOOKUPS

#: (family, kind, protocol, canonical name, address without a port), as ``getaddrinfo`` has it.
Found: TypeAlias = list[tuple[Any, ...]]


@dataclass(slots=True)
class _Lookup:
    """One that is under way, and in the end what came of it."""

    outcome: Found | BaseException | None = None


class Lookups:
    """Looks names up, each by one thread at a time however many ask, and only so many at once.

    A lookup that hangs keeps its thread until the resolver gives up, but nobody who asked. Thread-safe.
    """

    def __init__(self, most: int = MAX_LOOKUPS) -> None:
        self._most = most
        self._ended = threading.Condition()
        self._under_way: dict[str, _Lookup] = {}

    def find(self, host: str, deadline: float) -> Found:
        """The addresses of a host, by a time of the monotonic clock.

        :raises TimeoutError: they were not found by then
        :raises OSError: there are none, or the system has no more threads
        """
        if literal(host) is not None:  # nothing is asked
            return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        with self._ended:
            while (lookup := self._under_way.get(host)) is None and len(self._under_way) >= self._most:
                self._wait(deadline)
            if lookup is None:
                lookup = self._begin(host)
            while lookup.outcome is None:
                self._wait(deadline)
        if isinstance(lookup.outcome, BaseException):
            raise lookup.outcome
        return lookup.outcome

    def _wait(self, deadline: float) -> None:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._ended.wait(left_s)

    def _begin(self, host: str) -> _Lookup:
        lookup = _Lookup()
        thread = threading.Thread(target=self._run, args=(host, lookup), name="qcore-lookup", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise OSError(str(error)) from None
        self._under_way[host] = lookup
        return lookup

    def _run(self, host: str, lookup: _Lookup) -> None:
        outcome: Found | BaseException
        try:
            outcome = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except BaseException as error:
            outcome = error  # for those who asked
        with self._ended:
            lookup.outcome = outcome
            del self._under_way[host]
            self._ended.notify_all()
