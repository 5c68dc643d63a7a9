"""The registry of workers: order, silence, queues, connections."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qcore.engine.engine import Engine
from qcore.engine.workers import Worker, Workers

S = 1_000_000_000
NOW = 1_700_000_000_000


def worker(worker_id: str, *queues: str, at: int = 0, session: int = 1) -> Worker:
    return Worker(worker_id, "w", list(queues), 1, "host", 1, NOW, NOW, at * S, session)


def test_a_worker_is_active_for_30_s_and_forgotten_after_90() -> None:
    workers = Workers()
    workers.register(worker("a", "q"))
    assert workers.serves("q", 30 * S - 1)
    assert not workers.serves("q", 30 * S)
    assert not workers.serves("other", 0)
    workers.expire(90 * S - 1)
    assert len(workers) == 1
    assert workers.expires_ns == 90 * S
    workers.expire(90 * S)
    assert len(workers) == 0
    assert workers.expires_ns == 0


def test_the_engine_forgets_silent_workers_by_itself() -> None:
    engine = Engine(bytes(16))
    engine.workers.register(worker("a", "q"))
    assert engine.next_due(NOW, 0) == 90 * S
    engine.advance(NOW, 60 * S)
    assert len(engine.workers) == 1
    engine.advance(NOW, 90 * S)
    assert len(engine.workers) == 0
    assert engine.next_due(NOW, 90 * S) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["register", "seen", "remove", "leave", "expire"]),
            st.sampled_from("abc"),
            st.lists(st.sampled_from("xyz"), max_size=2, unique=True),
            st.integers(1, 2),
            st.integers(0, 50),
        ),
        max_size=40,
    )
)
def test_against_a_plain_list(steps: list[tuple[str, str, list[str], int, int]]) -> None:
    workers, plain, now = Workers(), dict[str, tuple[list[str], int, int]](), 0
    for what, name, queues, session, wait in steps:
        now += wait
        if what == "register":
            workers.register(worker(name, *queues, at=now, session=session))
            plain[name] = (queues, session, now)
        elif what == "seen" and name in plain:
            known = workers.get(name)
            assert known is not None
            workers.seen(known, NOW, now * S)
            plain[name] = (*plain[name][:2], now)
        elif what == "remove":
            assert workers.remove(name) == (plain.pop(name, None) is not None)
        elif what == "leave":
            workers.leave(session)
            plain = {key: value for key, value in plain.items() if value[1] != session}
        elif what == "expire":
            workers.expire(now * S)
            plain = {key: value for key, value in plain.items() if now - value[2] < 90}
        workers._check()
        assert {one.id for one in workers} == set(plain)
        for queue in "xyz":
            assert workers.serves(queue, now * S) == any(
                queue in mine and now - seen < 30 for mine, _, seen in plain.values()
            )
