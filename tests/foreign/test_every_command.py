"""Each command that a client of the protocol knows is served, by name, over a real socket."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from qcore.wire.commands import COMMANDS

#: The commands of revision 3, by family.
_TEXT = """
PUSH PUSHB PUSHF PULL PULLB ACK ACKB FAIL

GetJob GetState GetResult GetJobs GetJobCounts GetCountsPerPriority Count GetJobByCustomId GetProgress
GetChildrenValues GetFailedChildrenValues GetIgnoredChildrenFailures WaitJob GetQueueLimits
GetDeduplicationJobId

Cancel Discard Promote PromoteJobs Update ChangePriority ChangeDelay MoveToDelayed MoveToWait
MoveToWaitingChildren Progress UpdateParent RemoveChildDependency RemoveUnprocessedChildren
RemoveDeduplicationKey RemoveJobDeduplicationKey ExtendLock ExtendLocks AddLog GetLogs ClearLogs

Pause Resume IsPaused Drain Obliterate Clean ListQueues

Dlq GetDlqStats RetryDlq PurgeDlq RemoveDlqJob RetryCompleted SetDlqConfig GetDlqConfig SetStallConfig
GetStallConfig

RateLimit RateLimitClear SetConcurrency ClearConcurrency GetGroupJobsCount GetGroupsJobsCount
GetGroupActiveCount SetGroupRateLimit GetGroupRateLimit RemoveGroupRateLimit GetGroupRateLimitTtl
SetGroupConcurrency GetGroupConcurrency RemoveGroupConcurrency PauseGroup ResumeGroup IsGroupPaused
RateLimitGroup

Cron CronGet CronList CronDelete

Auth Hello Ping SubscribeEvents UnsubscribeEvents RegisterWorker Heartbeat UnregisterWorker ListWorkers
JobHeartbeat JobHeartbeatB Stats Metrics TrimEvents Prometheus StorageStatus CompactMemory AddWebhook
RemoveWebhook ListWebhooks SetWebhookEnabled DashboardOverview DashboardQueues DashboardQueue
"""
NAMES = _TEXT.split()


@pytest.fixture
def ask(port_of: Callable[[str, str], int]) -> Any:
    """One request, one reply, on a connection of its own."""
    numbers = map(str, itertools.count(1))
    with (
        socket.create_connection(("127.0.0.1", port_of("memory", "")), 30) as sock,
        sock.makefile("rb") as file,
    ):

        def ask(request: dict[str, Any]) -> dict[str, Any]:
            number = next(numbers)
            body = msgpack.packb(request | {"reqId": number})
            sock.sendall(struct.pack(">I", len(body)) + body)
            (size,) = struct.unpack(">I", file.read(4))
            reply: dict[str, Any] = msgpack.unpackb(file.read(size))
            assert reply["reqId"] == number
            return reply

        yield ask


def test_the_table_has_the_commands_of_the_protocol() -> None:
    assert len(NAMES) == len(set(NAMES)) == 107
    assert sorted(set(NAMES) - set(COMMANDS)) == []


@pytest.mark.parametrize("name", sorted({*NAMES, *COMMANDS}))
def test_it_is_served(ask: Callable[[dict[str, Any]], dict[str, Any]], name: str) -> None:
    """A request without fields is done, or refused in words about its fields."""
    reply = ask({"cmd": name})
    if reply["ok"]:
        assert not [field.name for field in COMMANDS[name].fields if field.required]
    else:
        assert "Unknown command" not in reply["error"]
        assert "Internal server error" not in reply["error"]


def test_another_name_is_not(ask: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    assert ask({"cmd": "Frobnicate"}) == {"ok": False, "error": "Unknown command: Frobnicate", "reqId": "1"}
    assert ask({"cmd": "ping"})["error"] == "Unknown command: ping"
