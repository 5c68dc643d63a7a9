"""Data and results are bounded by their JSON text, whatever their bytes are."""

from __future__ import annotations

from typing import Any

import pytest
from broker_talk import Talk

from qcore.broker import open_broker
from qcore.clock import ManualClock
from qcore.limits import MAX_DATA_CHARS

#: The longest that fits and the shortest that does not.
BOUNDS = {
    "ascii": ("x" * (MAX_DATA_CHARS - 2), "x" * (MAX_DATA_CHARS - 1)),
    "three bytes a character": ("☃" * (MAX_DATA_CHARS - 2), "☃" * (MAX_DATA_CHARS - 1)),
    "one byte, six characters": ([False] * (MAX_DATA_CHARS // 6), [False] * (MAX_DATA_CHARS // 6 + 1)),
    "binary": (bytes(MAX_DATA_CHARS - 2), bytes(MAX_DATA_CHARS - 1)),
}


@pytest.mark.parametrize("more", [{}, {"tags": ["t"]}], ids=["plain", "general"])
@pytest.mark.parametrize(("longest", "too_long"), BOUNDS.values(), ids=list(BOUNDS))
def test_it_is_taken_up_to_the_last_character(
    clock: ManualClock, longest: Any, too_long: Any, more: dict[str, Any]
) -> None:
    talk = Talk(open_broker(mode="server", clock=clock, seed=bytes(16)))
    said = "Job data too large (max 10MB)"
    first = talk.good("PUSH", queue="q", name="n", data=1)["id"]
    assert talk.refused("PUSH", queue="q", name="n", data=too_long, **more) == said
    job = {"name": "n", "data": too_long, **more}
    assert talk.refused("PUSHB", queue="q", jobs=[{"name": "n"}, job]) == f"jobs[1]: {said}"
    assert talk.refused("Update", id=first, data=too_long) == said
    assert talk.refused("Cron", name="c", queue="q", data=too_long, repeatEvery=60_000) == said
    talk.good("Cancel", id=first)
    talk.good("PUSH", queue="q", name="n", data=longest, **more)
    pulled = talk.good("PULL", queue="q", owner="w")
    assert pulled["job"]["data"] == longest
    job_id, token = pulled["job"]["id"], pulled["token"]
    flag = {"removeOnComplete": False} if more else {}
    assert talk.refused("ACK", id=job_id, token=token, result=too_long, **flag) == (
        "Job result too large (max 10MB)"
    )
    talk.good("ACK", id=job_id, token=token, result=longest, **flag)
    # With both of them the job is still read in one reply.
    job = talk.good("GetJob", id=job_id)["job"]
    assert job["data"] == longest
    assert job["returnvalue"] == longest
