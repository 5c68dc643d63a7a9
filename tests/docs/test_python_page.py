"""The page about Python names all that there is."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import qclient
from qclient import events
from qclient.deadletters import DeadLetters, Stalls, UniqueKeys
from qclient.limits import GroupHandle, QueueLimits
from qclient.options import OPTION_NAMES
from qclient.schedules import Schedules
from qclient.webhooks import Webhooks

PAGE = (Path(__file__).parents[2] / "docs/reference/python.md").read_text("utf-8")
PARTS = (
    qclient.Queue,
    qclient.Job,
    qclient.FlowProducer,
    DeadLetters,
    Stalls,
    UniqueKeys,
    QueueLimits,
    GroupHandle,
    Schedules,
    Webhooks,
    qclient.QueueGroup,
)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_public_method_is_on_the_page_and_says_what_it_does(part: type) -> None:
    for name, member in inspect.getmembers(part):
        if name.startswith("_"):
            continue
        assert f"`{name}" in PAGE or f"{name}(" in PAGE, name
        if inspect.isfunction(member):
            assert member.__doc__, name


def test_every_option_and_event_is_on_the_page() -> None:
    for name in OPTION_NAMES:
        assert f"`{name}`" in PAGE, name
    for name in events.__all__:
        assert f"`{name}" in PAGE or name in ("Event", "QueueEvents"), name
