"""The check of requests: exact texts, normal forms, defaults and absence."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given as hyp_given
from hypothesis import strategies as st
from msgpack import ExtType

from qcore.broker.handlers import HANDLERS
from qcore.errors import CommandError
from qcore.wire.commands import (
    ABSENT,
    COMMANDS,
    JOB_OPTIONS,
    POLICIES,
    Command,
    Field,
    check,
    find,
    job_name,
    queue_name,
)
from qcore.wire.fields import checker, shape
from qcore.wire.writer import Packed, Writer

UNDEFINED = ExtType(0, b"\0")
DATA = Packed(b"\x01")


#: What the commands with flags want beside them.
EXAMPLES = {
    "queue": "q",
    "name": "n",
    "id": "i",
    "priority": 1,
    "enabled": True,
    "jobs": [],
    "count": 1,
    "ids": ["a"],
}
DEDUP_FLAGS = ("extend", "replace", "keepUntilExpiry")
REPEAT_FLAGS = ("immediately", "continueOnFailure")


def checked(cmd: str, **fields: object) -> dict[str, Any]:
    return check(COMMANDS[cmd], {"cmd": cmd, "reqId": "1", **fields})


def refusal(cmd: str, **fields: object) -> str:
    with pytest.raises(CommandError) as caught:
        checked(cmd, **fields)
    assert caught.value.command == cmd
    return str(caught.value)


def pushed(**options: object) -> dict[str, Any]:
    out = checked("PUSH", queue="q", **options)
    assert out.pop("queue") == "q"
    return out


def test_the_table_is_whole() -> None:
    assert COMMANDS.keys() == HANDLERS.keys()
    for name, command in COMMANDS.items():
        assert command.name == name
        names = [field.name for field in command.fields]
        assert len(names) == len(set(names))
        assert command.blocking == (name in ("PULL", "PULLB", "WaitJob"))
        assert command.level in ("none", "buffered", "committed")
        for field in command.fields:
            assert field.help
            if field.kind != "batch":
                checker(field)
    assert len({field.name for field in JOB_OPTIONS}) == len(JOB_OPTIONS)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "Queue name is required"),
        ("", "Queue name is required"),
        (UNDEFINED, "Queue name is required"),
        (5, "Queue name is required"),
        ("q" * 257, "Queue name too long (max 256 characters)"),
        ("a b", "Queue name contains invalid characters"),
        ("a/b", "Queue name contains invalid characters"),
        ("ünïcode", "Queue name contains invalid characters"),
        ("a\n", "Queue name contains invalid characters"),
        ("a\0b", "Queue name contains invalid characters"),
    ],
)
def test_queue_name_texts(value: object, text: str) -> None:
    for cmd in ("PUSH", "PULL", "Count", "GetJobCounts", "Dlq"):
        assert refusal(cmd, queue=value) == text
    assert refusal("PUSHB", queue=value, jobs=[]) == text
    assert refusal("PULLB", queue=value, count=1) == text
    if value is not UNDEFINED:
        with pytest.raises(CommandError, match="Queue name"):
            queue_name(value)


def test_queue_and_job_names_pass() -> None:
    for name in ("q", "a:b", "ok_A-1.2:3", "q" * 256, "__class__", "Q"):
        assert queue_name(name) == name
    for name in ("n", "n" * 256, "é ☃", " "):
        assert job_name(name) == name
    for bad in ("", "n" * 257, None, 5):
        with pytest.raises(CommandError, match="Job name must be a non-empty string of at most 256 char"):
            job_name(bad)


def test_a_plain_push_keeps_only_what_was_given() -> None:
    assert pushed(name="n", data=DATA) == {"name": "n", "data": DATA}
    assert pushed() == {}
    assert pushed(data=None) == {"data": None}
    assert pushed(unknown=1, customId="x") == {}


@pytest.mark.parametrize(
    "option", [f.name for f in JOB_OPTIONS if f.name not in ("data", "name", "customId")]
)
def test_null_and_undefined_are_absent(option: str) -> None:
    assert pushed(**{option: None}) == {}
    assert pushed(**{option: UNDEFINED}) == {}


def test_null_is_a_payload_and_no_name() -> None:
    assert pushed(data=UNDEFINED, name=UNDEFINED) == {}
    assert refusal("PUSH", queue="q", name=None).startswith("Job name must be")
    assert checked("ACK", id="j", result=None) == {"id": "j", "result": None}
    assert checked("ACK", id="j", result=UNDEFINED) == {"id": "j"}


@pytest.mark.parametrize(
    ("option", "value", "normal"),
    [
        ("jobId", "order:42", "order:42"),
        ("priority", 5, 5),
        ("priority", 5.0, 5),
        ("priority", 1.5, 1.5),
        ("priority", "5", 5),
        ("priority", " -2.5 ", -2.5),
        ("priority", 10**15, 10**15),
        ("delay", -1, -1),
        ("delay", "250", 250),
        ("delay", 0.4, 0),
        ("delay", 1.5, 2),
        ("delay", 1e300, 4_320_000_000_000_000),
        ("delay", -1e300, -4_320_000_000_000_000),
        ("maxAttempts", 0, 1),
        ("maxAttempts", -7, 1),
        ("maxAttempts", 1.2, 2),
        ("maxAttempts", 1e99, 2_147_483_647),
        ("maxAttempts", "4", 4),
        ("backoff", 0, 0),
        ("backoff", "1000", 1000),
        ("backoff", 86_400_001, 86_400_001),
        ("backoff", {"type": "fixed"}, {"type": "fixed", "delay": 1000}),
        ("backoff", {"type": "linear", "delay": 1}, {"type": "exponential", "delay": 1}),
        ("backoff", {"delay": None}, {"type": "exponential", "delay": 1000}),
        (
            "backoff",
            {"type": "fixed", "delay": 10, "maxDelay": 20, "jitter": 0.5},
            {"type": "fixed", "delay": 10, "maxDelay": 20, "jitter": 0.5},
        ),
        ("ttl", 0, 0),
        ("timeout", 86_400_001, 86_400_001),
        ("stallTimeout", -1, -1),
        ("dedup", {"ttl": -5, "extend": True, "x": 2}, {"ttl": -5, "extend": True}),
        ("dependsOn", ["a", "b"], ["a", "b"]),
        ("childrenIds", [], []),
        ("tags", ["", "x" * 256], ["", "x" * 256]),
        ("groupId", "g", "g"),
        ("groupMaxSize", 5.0, 5),
        ("lifo", True, True),
        ("lifo", False, False),
        ("removeOnComplete", False, False),
        ("removeOnComplete", 100, 100),
        ("removeOnComplete", 0, 0),
        ("removeOnFail", {"age": 1.5, "count": 3.0}, {"age": 1.5, "count": 3}),
        ("repeat", {"every": 50, "limit": 2}, {"every": 50, "limit": 2}),
        ("repeat", {"every": 50, "limit": "2", "count": 1.0}, {"every": 50, "limit": 2, "count": 1}),
        ("repeat", {"pattern": "* * * * *", "every": None}, {"pattern": "* * * * *"}),
        ("repeat", {"every": "50", "immediately": True}, {"every": 50, "immediately": True}),
        ("stackTraceLimit", 3.0, 3),
        ("timestamp", 1_700_000_000_000.0, 1_700_000_000_000),
    ],
)
def test_normal_forms(option: str, value: object, normal: object) -> None:
    out = pushed(**{option: value})
    [(key, got)] = out.items()
    assert key == ("customId" if option == "jobId" else option)
    assert got == normal
    assert type(got) is type(normal)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"priority": "high"}, "priority must be a number"),
        ({"priority": True}, "priority must be a number"),
        ({"priority": ""}, "priority must be a number"),
        ({"priority": "0x10"}, "priority must be a number"),
        ({"priority": math.inf}, "priority must be a finite number"),
        ({"priority": "1e999"}, "priority must be a finite number"),
        ({"delay": "soon"}, "delay must be a number"),
        ({"delay": math.nan}, "delay must be a finite number"),
        ({"delay": [1]}, "delay must be a number"),
        ({"timeout": -1}, "timeout must be at least 0"),
        ({"ttl": -1}, "ttl must be at least 0"),
        ({"maxAttempts": "many"}, "maxAttempts must be a number"),
        ({"maxAttempts": math.nan}, "maxAttempts must be a finite number"),
        ({"backoff": -1}, "backoff must be at least 0"),
        ({"backoff": "soon"}, "backoff must be a number"),
        ({"backoff": [1]}, "backoff must be a number"),
        ({"backoff": {"type": "fixed", "delay": -1}}, "backoff.delay must be at least 0"),
        ({"backoff": {"maxDelay": 86_400_001}}, "backoff.maxDelay must be at most 86400000"),
        ({"backoff": {"jitter": 2}}, "backoff.jitter must be at most 1"),
        ({"groupId": ""}, "groupId must be a non-empty string"),
        ({"groupId": 5}, "groupId must be a string"),
        ({"groupId": "g" * 257}, "groupId must be at most 256 characters"),
        ({"groupId": "a\0"}, "groupId must not contain NUL characters"),
        ({"groupMaxSize": 0}, "group.maxSize must be a positive safe integer"),
        ({"groupMaxSize": 1.5}, "group.maxSize must be a positive safe integer"),
        ({"groupMaxSize": 2**53}, "group.maxSize must be a positive safe integer"),
        ({"groupMaxSize": True}, "group.maxSize must be a positive safe integer"),
        ({"groupId": "g", "priority": -1}, "group.priority must be between 0 and 2097151"),
        ({"priority": 2097152, "groupId": "g"}, "group.priority must be between 0 and 2097151"),
        ({"groupId": "g", "priority": 1.5}, "group.priority must be an integer"),
        ({"groupId": "g", "priority": "high"}, "group.priority must be a finite number"),
        ({"groupId": "g", "priority": math.nan}, "group.priority must be a finite number"),
        ({"dependsOn": "a"}, "dependsOn must be an array of valid string job ids"),
        ({"dependsOn": [1]}, "dependsOn must be an array of valid string job ids"),
        ({"childrenIds": [""]}, "childrenIds must be an array of valid string job ids"),
        ({"dependsOn": ["a"], "jobId": "a"}, "Job cannot depend on itself: a"),
        ({"tags": ["x" * 257]}, "tags must be an array of strings of at most 256 characters"),
        ({"uniqueKey": 5}, "uniqueKey must be a string"),
        ({"dedup": 5}, "dedup must be an object"),
        ({"removeOnComplete": "yes"}, "removeOnComplete must be a boolean, a number or an object"),
        ({"removeOnComplete": -1}, "removeOnComplete must be at least 0"),
        ({"removeOnFail": 1.5}, "removeOnFail must be an integer"),
        ({"removeOnFail": {}}, "removeOnFail requires age or count"),
        ({"repeat": {}}, "repeat requires exactly one of every or pattern"),
        ({"repeat": 5}, "repeat must be an object"),
        ({"repeat": {"every": 0}}, "repeat.every must be a positive finite number"),
        ({"repeat": {"every": "x"}}, "repeat.every must be a positive finite number"),
        ({"repeat": {"every": 1, "pattern": "* * * * *"}}, "repeat requires exactly one of every or pattern"),
        (
            {"repeat": {"every": 1000}, "jobId": "x"},
            "repeat jobs cannot use JobOptions.jobId; use repeat.jobId instead",
        ),
        (
            {"repeat": {"every": 1000}, "parentId": "p"},
            "repeat jobs cannot participate in parent or dependency relationships",
        ),
        ({"timestamp": 5e15}, "timestamp must be at most 4320000000000000"),
        ({"name": ""}, "Job name must be a non-empty string of at most 256 characters"),
        ({"name": "n" * 257}, "Job name must be a non-empty string of at most 256 characters"),
    ],
)
def test_texts_of_job_options(options: dict[str, object], text: str) -> None:
    """The same text from a single add, and with the index in front from a batch."""
    assert refusal("PUSH", queue="q", **options) == text
    entry = {"customId" if key == "jobId" else key: value for key, value in options.items()}
    assert refusal("PUSHB", queue="q", jobs=[{"name": "ok"}, entry]) == f"jobs[1]: {text}"


@pytest.mark.parametrize("flag", ["yes", "false", "", 0, 1, 1.0, math.nan, [], {}, b"", b"1"])
@pytest.mark.parametrize(
    ("cmd", "fields", "path"),
    [
        *[("PUSH", {"queue": "q"}, field.name) for field in JOB_OPTIONS if field.kind == "flag"],
        *[("PUSH", {"queue": "q", "uniqueKey": "k"}, f"dedup.{key}") for key in DEDUP_FLAGS],
        *[("PUSH", {"queue": "q"}, f"repeat.{key}") for key in REPEAT_FLAGS],
        ("PULL", {"queue": "q"}, "group.ungroupedFirst"),
        ("Dlq", {"queue": "q"}, "filter.retriable"),
        ("Dlq", {"queue": "q"}, "filter.expired"),
        *[
            (command.name, {}, field.name)
            for command in COMMANDS.values()
            for field in command.fields
            if field.kind == "flag" and command.name != "PUSH"
        ],
    ],
)
def test_a_flag_is_true_or_false(cmd: str, fields: dict[str, object], path: str, flag: object) -> None:
    """Every flag of every command: no other type says either, and the refusal says which and what came."""
    name, _, inner = path.partition(".")
    value: object = flag if not inner else {inner: flag}
    if name == "repeat":
        value = {"every": 1000, inner: flag}
    given = {**EXAMPLES, **fields}
    with pytest.raises(CommandError) as caught:
        check(find(cmd), {"cmd": cmd, **given, name: value})
    assert str(caught.value) == f"{path} must be a boolean"
    assert caught.value.came == shape(flag)


#: Values that no option takes, by option: the text of the refusal, and what it says came.
REFUSED = [
    ({"priority": "high"}, "priority must be a number", "a string of 4 characters"),
    ({"priority": True}, "priority must be a number", "true"),
    ({"delay": math.nan}, "delay must be a finite number", "nan"),
    ({"timeout": -1}, "timeout must be at least 0", "-1"),
    ({"timeout": [1]}, "timeout must be a number", "an array of 1"),
    ({"ttl": -0.5}, "ttl must be at least 0", "-0.5"),
    ({"ttl": {}}, "ttl must be a number", "an object of 0"),
    ({"stallTimeout": b"1"}, "stallTimeout must be a number", "binary data"),
    ({"maxAttempts": False}, "maxAttempts must be a number", "false"),
    ({"backoff": {"delay": -1}}, "backoff.delay must be at least 0", "-1"),
    ({"backoff": {"jitter": 1.5}}, "backoff.jitter must be at most 1", "1.5"),
    ({"dedup": {"ttl": "x"}}, "dedup.ttl must be a number", "a string of 1 characters"),
    ({"dedup": "k"}, "dedup must be an object", "a string of 1 characters"),
    ({"groupMaxSize": 1.5}, "group.maxSize must be a positive safe integer", "1.5"),
    ({"tags": "a"}, "tags must be an array of strings of at most 256 characters", "a string of 1 characters"),
    ({"uniqueKey": 5}, "uniqueKey must be a string", "5"),
    ({"parentId": 5}, "parentId must be a string", "5"),
    ({"removeOnComplete": 1.5}, "removeOnComplete must be an integer", "1.5"),
    ({"removeOnFail": {"count": -1}}, "removeOnFail.count must be at least 0", "-1"),
    ({"stackTraceLimit": math.inf}, "stackTraceLimit must be a finite number", "inf"),
    ({"keepLogs": "all"}, "keepLogs must be a number", "a string of 3 characters"),
    ({"sizeLimit": -1}, "sizeLimit must be at least 0", "-1"),
    ({"debounceTtl": "x"}, "debounceTtl must be a number", "a string of 1 characters"),
    ({"timestamp": 5e15}, "timestamp must be at most 4320000000000000", "5000000000000000"),
    ({"repeat": {"every": -1}}, "repeat.every must be a positive finite number", "-1"),
    ({"repeat": {"every": 1, "limit": 1.5}}, "repeat.limit must be an integer", "1.5"),
    ({"repeat": {"every": 1, "limit": -1}}, "repeat.limit must be at least 0", "-1"),
    ({"repeat": {"every": 1, "count": -5}}, "repeat.count must be at least 0", "-5"),
    ({"repeat": {"every": 1, "count": 0.5}}, "repeat.count must be an integer", "0.5"),
    ({"repeat": {"every": 1, "offset": "x"}}, "repeat.offset must be a number", "a string of 1 characters"),
    ({"repeat": {"every": 1, "tz": 5}}, "repeat.tz must be a string", "5"),
    (
        {"repeat": {"every": 1, "startDate": "soon"}},
        "repeat.startDate must be a date",
        "a string of 4 characters",
    ),
    ({"repeat": {"pattern": 5}}, "Invalid repeat pattern: it must be a non-empty string", "5"),
    (
        {"parentId": "p", "failParentOnFailure": True, "continueParentOnFailure": True},
        "failure policies are mutually exclusive: failParentOnFailure and continueParentOnFailure",
        None,
    ),
    *[({name: True}, f"{name} requires a parent", None) for name in POLICIES],
    ({"parentId": "", "failParentOnFailure": True}, "failParentOnFailure requires a parent", None),
]


@pytest.mark.parametrize(("options", "text", "came"), REFUSED)
def test_a_refusal_names_the_option_what_was_expected_and_what_came(
    options: dict[str, object], text: str, came: str | None
) -> None:
    for cmd, fields, front in (
        ("PUSH", {"queue": "q", **options}, ""),
        ("PUSHB", {"queue": "q", "jobs": [{}, options]}, "jobs[1]: "),
    ):
        with pytest.raises(CommandError) as caught:
            check(find(cmd), {"cmd": cmd, **fields})
        assert (str(caught.value), caught.value.came) == (front + text, came)


def test_false_policies_need_no_parent() -> None:
    assert pushed(**dict.fromkeys(POLICIES, False)) == dict.fromkeys(POLICIES, False)
    assert pushed(parentId="p", removeDependencyOnFailure=True, failParentOnFailure=False)


def test_a_batch() -> None:
    assert refusal("PUSH", queue="q", jobId=5) == "jobId must be a string"
    assert refusal("PUSHB", queue="q", jobs=[{"customId": 5}]) == "jobs[0]: customId must be a string"
    out = checked("PUSHB", queue="q", jobs=[{"data": DATA}, {"customId": "c", "jobId": "ignored"}, {}])
    assert out == {"queue": "q", "jobs": [{"data": DATA}, {"customId": "c"}, {}]}
    assert checked("PUSHB", queue="q", jobs=[]) == {"queue": "q", "jobs": []}
    assert refusal("PUSHB", queue="q") == "jobs is required"
    assert refusal("PUSHB", queue="q", jobs=5) == "jobs must be an array"
    assert refusal("PUSHB", queue="q", jobs=[{}, 5]) == "jobs[1]: must be an object"
    own = {"customId": "c", "dependsOn": ["c"]}
    assert refusal("PUSHB", queue="q", jobs=[own]) == "jobs[0]: Job cannot depend on itself: c"


def test_data_is_bounded() -> None:
    writer = Writer()
    writer.value(b"x" * (10 * 1024 * 1024))
    data = Packed(writer.take())
    assert refusal("PUSH", queue="q", data=data) == "Job data too large (max 10MB)"
    assert refusal("PUSHB", queue="q", jobs=[{"data": data}]) == "jobs[0]: Job data too large (max 10MB)"


def test_pull_defaults() -> None:
    base = {"queue": "q", "timeout": 0, "lockTtl": 30_000, "detach": False}
    assert checked("PULL", queue="q") == base
    assert checked("PULL", queue="q", timeout=None, owner="", group=None) == base
    assert checked("PULL", queue="q", timeout=1.0, owner="w", detach=True, group={}) == {
        **base,
        "timeout": 1,
        "owner": "w",
        "detach": True,
        "group": {},
    }
    assert checked("PULLB", queue="q", count=1000) == {**base, "count": 1000}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"timeout": 60001}, "timeout must be at most 60000"),
        ({"timeout": -1}, "timeout must be at least 0"),
        ({"timeout": "5"}, "timeout must be a number"),
        ({"timeout": math.nan}, "timeout must be a finite number"),
        ({"lockTtl": "5"}, "lockTtl must be a number"),
        ({"group": []}, "group must be an object"),
        ({"group": {"concurrency": 0}}, "group.concurrency must be a positive safe integer"),
        ({"group": {"concurrency": 1.5}}, "group.concurrency must be a positive safe integer"),
        ({"group": {"limit": 5}}, "group.limit must be an object"),
        ({"group": {"limit": {"max": 0, "duration": 1}}}, "group.limit.max must be a positive safe integer"),
        ({"group": {"limit": {"max": 1}}}, "group.limit.duration must be a positive safe integer"),
        ({"group": {"affinity": 3}}, "group.affinity must be a string or null"),
    ],
)
def test_texts_of_pull(fields: dict[str, object], text: str) -> None:
    assert refusal("PULL", queue="q", **fields) == text
    assert refusal("PULLB", queue="q", count=1, **fields) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "count must be at least 1"),
        (-1, "count must be at least 1"),
        (1001, "count must be at most 1000"),
        (2**62, "count must be at most 1000"),
        ("5", "count must be a number"),
        (True, "count must be a number"),
        (1.5, "count must be an integer"),
        (None, "count is required"),
        (UNDEFINED, "count is required"),
    ],
)
def test_texts_of_count(count: object, text: str) -> None:
    assert refusal("PULLB", queue="q", count=count) == text


def test_acknowledgements() -> None:
    assert checked("ACK", id="j", token="", removeOnComplete=True) == {"id": "j", "removeOnComplete": True}
    assert refusal("ACK") == "id is required"
    assert refusal("ACK", id="") == "id is required"
    assert refusal("ACK", id=5) == "id must be a string"
    out = checked(
        "ACKB", ids=["a", "b"], tokens=["t", None], results=[DATA, None], removeOnCompletes=[True, None]
    )
    assert out == {
        "ids": ["a", "b"],
        "tokens": ["t", ""],
        "results": [DATA, None],
        "removeOnCompletes": [True, None],
    }
    assert checked("ACKB", ids=[]) == {"ids": []}
    for name in ("tokens", "results", "removeOnCompletes"):
        one = [True] if name == "removeOnCompletes" else ["x"]
        assert refusal("ACKB", ids=["a", "b"], **{name: one}) == f"ACKB {name} length must match ids length"
    assert refusal("ACKB") == "ids is required"
    assert refusal("JobHeartbeatB") == "ids is required"
    assert checked("JobHeartbeatB", ids=["a"], tokens=[])["tokens"] == []


def test_failure() -> None:
    out = checked("FAIL", id="j", error="boom", stack=["a", 5, "b"] + ["x"] * 200, unrecoverable=True)
    assert out["stack"] == ["a", "b"] + ["x"] * 98
    assert out["unrecoverable"] is True
    assert checked("FAIL", id="j", stack="no list") == {"id": "j", "unrecoverable": False}


def test_workers() -> None:
    assert checked("RegisterWorker", name="w", queues=["q"]) == {
        "name": "w",
        "queues": ["q"],
        "concurrency": 1,
        "hostname": "unknown",
        "pid": 0,
    }
    assert refusal("RegisterWorker", queues=["q"]) == "name is required"
    assert refusal("RegisterWorker", name="w", queues=["a b"]) == "Queue name contains invalid characters"
    assert checked("Heartbeat", id="w", activeJobs=2, processed=10.0) == {
        "id": "w",
        "activeJobs": 2,
        "processed": 10,
    }
    assert refusal("Heartbeat") == "id is required"


def test_session_commands_take_anything() -> None:
    assert checked("Hello") == {}
    assert checked("Hello", protocolVersion="x", capabilities=["int64", 5]) == {
        "protocolVersion": "x",
        "capabilities": ["int64"],
    }
    assert checked("Hello", capabilities=5) == {}
    assert checked("Auth", token=5) == {"token": 5}
    assert refusal("Auth") == "Invalid token"
    assert checked("Ping", extra="ignored") == {}


def test_find() -> None:
    assert find("Ping") is COMMANDS["Ping"]
    nothing: tuple[object, ...] = (None, "", 0, False, UNDEFINED)
    for cmd in nothing:
        with pytest.raises(CommandError, match=r"^Invalid command$"):
            find(cmd)
    for cmd, shown in (
        ("Nope", "Nope"),
        ("ping", "ping"),
        ("__class__", "__class__"),
        (7, "7"),
        ([1], "an array of 1"),
    ):
        with pytest.raises(CommandError) as caught:
            find(cmd)
        assert str(caught.value) == f"Unknown command: {shown}"
    with pytest.raises(CommandError) as caught:
        find("x" * 100_000)
    assert len(str(caught.value)) < 200


def test_a_command_of_ones_own() -> None:
    """The table is data: a command is checked by what its fields say."""
    own = Command("Ping", (Field("n", "int", 7, minimum=0, help="how many"),))
    assert check(own, {}) == {"n": 7}
    assert check(COMMANDS["Ping"], {"n": 5}) == {}
    with pytest.raises(CommandError, match="n must be at least 0"):
        check(own, {"n": -1})
    assert not ABSENT
    assert repr(ABSENT) == "ABSENT"


TEXT = st.text("aq5é:/\0 ", max_size=5)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | TEXT
    | st.binary()
    | st.just(UNDEFINED),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@hyp_given(st.data())
def test_any_values_are_checked_or_refused(data: st.DataObject) -> None:
    """No value of any field raises anything but CommandError, and a check of the result changes nothing."""
    command = COMMANDS[data.draw(st.sampled_from(sorted(COMMANDS)))]
    names = [field.name for field in command.fields]
    request: dict[str, object] = {
        "queue": "q",
        "id": "j",
        "ids": ["a"],
        "count": 1,
        "name": "n",
        "queues": [],
    }
    if names:
        request |= data.draw(st.dictionaries(st.sampled_from(names), ANYTHING, max_size=4))
    if command.name == "PUSHB":
        options = [field.name for field in JOB_OPTIONS]
        request["jobs"] = [data.draw(st.dictionaries(st.sampled_from(options), ANYTHING, max_size=4))]
    try:
        out = check(command, request)
    except CommandError:
        return
    again = dict(out)
    if command.name == "PUSH" and "customId" in again:
        again["jobId"] = again.pop("customId")
    assert repr(check(command, again)) == repr(out)
