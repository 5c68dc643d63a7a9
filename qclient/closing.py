"""What holds a client and is to be closed."""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import Any, Self

from qclient.client import Client


class Closing:
    """A context manager around ``client``; dropped open, it warns and closes."""

    client: Client

    def close(self) -> None:
        """Close the connections; may be called twice."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, _warn: Any = warnings.warn) -> None:
        client: Client | None = getattr(self, "client", None)
        if client is not None and client.capabilities is not None and not client.closed:
            _warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
            client.close()
