"""Copies of the plain model: what is changed in place is never shared."""

from __future__ import annotations

from dataclasses import is_dataclass
from fractions import Fraction

import pytest

from qcore.reference.capacity import Bucket, Limits
from qcore.reference.engine import Delivery, Job, Letter, Queue
from qcore.reference.keys import Key

#: Replaced as a whole wherever they change.
REPLACED = {"letter", "chain", "dead", "stalls", "keep_completed"}


def a_job() -> Job:
    job = Job("j", "a", b"d", 1, 0, 0, 0, False, 3, False, False, None, None, Key("k"), {"count": 1})
    job.delivery = Delivery("t", 1, 10, 20, None)
    job.letter = job.chain = Letter(1, None)
    job.log.append([1, "info", "line"])
    return job


def a_queue() -> Queue:
    q = Queue(limits=Limits(2, Bucket(1, 1, 0, 0, Fraction(1, 3))))
    q.limits.group("x").paused = True
    q.completions.count(60_000, 10)
    q.journal.count()
    return q


@pytest.mark.parametrize("one", [a_job(), a_queue(), a_queue().limits], ids=lambda one: type(one).__name__)
def test_a_copy_shares_nothing_that_is_changed_in_place(one: Job | Queue | Limits) -> None:
    twin = one.copied()
    assert twin == one
    for name, held in vars(one).items():
        if name not in REPLACED and (is_dataclass(held) or isinstance(held, list | dict | set)):
            assert vars(twin)[name] is not held, name


def test_a_copy_of_a_queue_keeps_its_counts() -> None:
    q = a_queue()
    twin = q.copied()
    for _ in range(2):
        q.completions.count(60_000, 10)
        q.journal.count()
        q.limits.group("x").turn += 1
    assert q.completions.minutes == {1: 3}
    assert twin == a_queue()
