"""Make a data file as a killed server of some version leaves it, and write down what it answered.

    PYTHONPATH=CHECKOUT python tests/broker/make_old_file.py NAME

``CHECKOUT`` is a built one of the commit that the file is to come from; ``NAME.tar.gz`` goes to
``tests/data/old_files``. Commands and options that it does not know are left out.
"""

from __future__ import annotations

import io
import json
import struct
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import msgpack
from questions import OF_ALL, OF_GROUP, OF_JOB, OF_PARENT, OF_QUEUE

from qcore.broker.opening import close_broker, flush, open_broker
from qcore.broker.session import Session
from qcore.clock import ManualClock
from qcore.wire.commands import COMMANDS

HOUR_MS = 3_600_000
TARGET = Path(__file__).parent.parent / "data" / "old_files"

QUEUES = ("q", "held", "kids", "tops")


class Talk:
    """One connection to a broker; whoever asks commits."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.session = Session(broker, lambda: None)

    def ask(self, cmd: str, **fields: Any) -> Any:
        body = msgpack.packb({"cmd": cmd, **fields})
        self.session.feed(struct.pack(">I", len(body)) + body)
        flush(self.broker)
        return msgpack.unpackb(self.session.take()[4:], strict_map_key=False)

    def tell(self, cmd: str, **fields: Any) -> Any:
        """Ask for a change, if this version has the command."""
        if cmd not in COMMANDS:
            print(f"{cmd} is not known yet", file=sys.stderr)
            return None
        reply = self.ask(cmd, **fields)
        if not reply["ok"]:
            raise SystemExit(f"{cmd} {fields.get('id', '')}: {reply['error']}")
        return reply


def fill(talk: Talk) -> tuple[list[str], dict[str, str]]:
    """Jobs in each state with all that a job can have; their ids, and the tokens of those that run."""
    ids: list[str] = []

    def add(job_id: str, **options: Any) -> None:
        job = {"queue": "q", "name": "n", "data": {"of": job_id}, "backoff": HOUR_MS, **options}
        while not (reply := talk.ask("PUSH", jobId=job_id, **job))["ok"]:
            option = reply["error"].split(" ")[0]
            if option not in job or not reply["error"].endswith("not supported by this server yet"):
                raise SystemExit(f"{job_id} is refused: {reply['error']}")
            del job[option]
        ids.append(job_id)

    def take(job_id: str, queue: str = "q") -> str:
        got = talk.ask("PULL", queue=queue, owner="w", lockTtl=HOUR_MS)
        assert got["job"]["id"] == job_id, got
        return str(got["token"])

    add("completed", tags=["a"], keepLogs=5, priority=9)
    token = take("completed")
    talk.tell("AddLog", id="completed", message="line", level="warn")
    talk.tell("Progress", id="completed", token=token, progress=40, message="on")
    talk.tell("ACK", id="completed", token=token, result={"deep": [1, 2.5, None, "ä"]})
    add("large", data="x" * 5_000, priority=9)
    talk.tell("ACK", id="large", token=take("large"), result="y" * 5_000)
    add("dead", priority=9, maxAttempts=1, uniqueKey="free")
    stack = ["line 1", "line 2"]
    talk.tell("FAIL", id="dead", token=take("dead"), error="why", stack=stack)
    add("retried", priority=9)
    talk.tell("FAIL", id="retried", token=take("retried"), error="not yet", stack=stack)
    if "PUSHF" in COMMANDS:
        meta = {"__parentId": "top", "__parentQueue": "tops"}
        kids = ["kid", "bad", "other"]
        top = {"name": "n", "data": {"__childrenIds": kids}, "dependsOn": kids, "childrenIds": kids}
        kid = {"name": "n", "data": meta, "parentId": "top"}
        bad = {**kid, "maxAttempts": 1, "ignoreDependencyOnFailure": True, "priority": 4}
        inputs = [("top", "tops", top), ("kid", "kids", {**kid, "priority": 5}), ("bad", "kids", bad)]
        inputs.append(("other", "kids", kid))
        talk.tell("PUSHF", jobs=[{"id": i, "queue": queue, "input": one} for i, queue, one in inputs])
        ids.extend(["top", *kids])
        talk.tell("ACK", id="kid", token=take("kid", "kids"), result={"v": 1})
        talk.tell("FAIL", id="bad", token=take("bad", "kids"), error="ignored")
    add("active", priority=9, timeout=HOUR_MS, groupId="g", uniqueKey="taken")
    held = {"active": take("active")}
    talk.tell("Progress", id="active", token=held["active"], progress=7, message="going")
    talk.tell("AddLog", id="active", message="line")
    add("waiting", ttl=HOUR_MS, stallTimeout=9000, lifo=True, removeOnComplete=3)
    add("low", priority=-7)
    add("tied", dependsOn=["low", "completed"])
    add("delayed", delay=HOUR_MS, uniqueKey="held")
    add("limited", groupId="h")
    talk.tell("PauseGroup", queue="q", groupId="h")
    talk.tell("SetGroupConcurrency", queue="q", groupId="g", concurrency=4)
    talk.tell("SetGroupRateLimit", queue="q", groupId="g", max=1000, duration=60_000)
    add("paused", queue="held")
    talk.tell("Pause", queue="held")
    talk.tell("SetConcurrency", queue="held", limit=5)
    talk.tell("SetDlqConfig", queue="q", config={"maxEntries": 7})
    talk.tell("SetStallConfig", queue="q", config={"maxStalls": 9})
    talk.tell("Cron", name="c", queue="held", schedule="0 0 1 1 *", data={"c": 1}, maxLimit=4)
    talk.tell("Cron", name="e", queue="q", repeatEvery=1000 * HOUR_MS, data={})
    talk.tell("AddWebhook", url="https://example.com/hook", events=["job.completed"], queue="none")
    return ids, held


def questions(ids: list[str], logs: bool) -> list[dict[str, Any]]:
    """All that is asked; without ``logs`` those were in memory only."""
    asked: list[dict[str, Any]] = [{"cmd": cmd, "id": i} for cmd in (*OF_JOB, *OF_PARENT) for i in ids]
    asked += [{"cmd": "GetJobByCustomId", "customId": i} for i in ids]
    asked += [{"cmd": cmd, "queue": queue} for cmd in OF_QUEUE for queue in QUEUES]
    asked += [{"cmd": cmd, "queue": "q", "groupId": group} for cmd in OF_GROUP for group in "gh"]
    for key in ("free", "held", "taken"):
        asked.append({"cmd": "GetDeduplicationJobId", "queue": "q", "deduplicationId": key})
    for kind in ("completed", "failed"):
        asked += [{"cmd": "Metrics", "queue": queue, "type": kind} for queue in QUEUES]
    asked += [{"cmd": "GetEvents", "queue": queue, "limit": 100} for queue in QUEUES]
    asked += [{"cmd": cmd} for cmd in OF_ALL]
    return [each for each in asked if each["cmd"] in COMMANDS and (logs or each["cmd"] != "GetLogs")]


def order(talk: Talk) -> dict[str, list[str]]:
    """In which order the jobs of each queue would be run."""
    found: dict[str, list[str]] = {}
    talk.tell("Resume", queue="held")
    talk.tell("ResumeGroup", queue="q", groupId="h")
    for queue in QUEUES:
        found[queue] = []
        while (job := talk.ask("PULL", queue=queue, owner="w")["job"]) is not None:
            found[queue].append(job["id"])
    return found


def main(name: str) -> None:
    """Write one file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "made.db"
        clock = ManualClock()
        try:
            broker = open_broker(str(file), mode="server", clock=clock, seed=bytes(16), keep_events=True)
        except TypeError:
            broker = open_broker(str(file), mode="server", clock=clock, seed=bytes(16))
        talk = Talk(broker)
        ids, held = fill(talk)
        logs = (Path(open_broker.__code__.co_filename).parent.parent / "store" / "schema-2.sql").exists()
        said = [[question, talk.ask(**question)] for question in questions(ids, logs)]
        said = [[question, reply] for question, reply in said if reply["ok"]]
        files = {f"old.db{suffix}": Path(f"{file}{suffix}").read_bytes() for suffix in ("", "-wal")}
        found = {"held": held, "said": said, "order": order(talk)}
        files["said.json"] = json.dumps(found).encode()
        with tarfile.open(TARGET / f"{name}.tar.gz", "w:gz", compresslevel=9) as archive:
            for member_name, content in files.items():
                member = tarfile.TarInfo(member_name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        close_broker(broker)


if __name__ == "__main__":
    main(sys.argv[1])
