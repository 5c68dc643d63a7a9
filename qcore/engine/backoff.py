"""How long a failed job waits."""

from __future__ import annotations

import math

from qcore.limits import DEFAULT_BACKOFF_CAP_MS


def backoff_ms(
    attempt: int,
    base_ms: float,
    *,
    kind: str = "exponential",
    cap_ms: float | None = None,
    jitter: float | None = None,
    r: float = 0.0,
) -> int:
    """Whole milliseconds before retry number ``attempt`` (1 after the first failure).

    ``r`` is uniform in [0, 1). Without ``jitter`` this is the formula of the wire
    protocol: exponential ``base * 2**attempt * (0.5 + r)``, fixed
    ``base * (0.8 + 0.4 * r)``, so a first exponential retry is around twice the
    base. With ``jitter`` j in 0..1 it is ``min(cap, base * 2**(attempt - 1)) * (1 - j * r)``
    (fixed: ``base`` in place of the power): exact for j = 0, and only ever shorter.
    The cap is one hour unless given. A base of 0 retries at once.
    """
    if base_ms <= 0:
        return 0
    cap = DEFAULT_BACKOFF_CAP_MS if cap_ms is None else cap_ms
    if jitter is not None:
        wait = base_ms if kind == "fixed" else _grown(base_ms, attempt - 1, cap)
        return math.floor(min(cap, wait) * (1.0 - jitter * r))
    if kind == "fixed":
        wait = base_ms * (0.8 + 0.4 * r)
    else:
        # The cap is applied after the jitter, so growth stops one doubling later.
        wait = _grown(base_ms, attempt, 2 * cap) * (0.5 + r)
    return round(min(cap, wait))


def _grown(base_ms: float, doublings: int, enough: float) -> float:
    """``base_ms * 2**doublings``, or ``enough`` as soon as that is less: no overflow."""
    if doublings > 64:
        return enough
    return float(min(enough, base_ms * 2.0**doublings))
