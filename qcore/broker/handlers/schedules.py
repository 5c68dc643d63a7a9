"""Named schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qcore.broker.handlers.adding import admissible, admission
from qcore.broker.handlers.answer import Answer, Fields, Handler, Reply
from qcore.engine.cron import Cron, CronError, check_zone, shown
from qcore.engine.schedule import Schedule
from qcore.errors import CommandError, NotFoundError
from qcore.wire.fields import MAX_SETTING

#: Of an admission, what the schedule has itself, or what only an add has.
_NOT_KEPT = ("created_ms", "data", "durable", "job_id")
_FLAGS = ("immediately", "preventOverlap", "skipMissedOnRestart", "skipIfNoWorker")


def _shown(schedule: Schedule) -> Reply:
    return {
        "name": schedule.name,
        "jobName": schedule.job.get("name", "default"),
        "queue": schedule.queue,
        "schedule": schedule.pattern,
        "repeatEvery": schedule.every_ms,
        "nextRun": schedule.next_ms,
        "executions": schedule.executions,
        "maxLimit": schedule.max_runs or None,
        "timezone": schedule.zone,
        "priority": _narrow(schedule.job.get("priority", 0)),
    }


def _narrow(number: float) -> float:
    """A whole number as an integer, for clients that are strict about types."""
    return int(number) if number % 1 == 0 and abs(number) < 2**53 else number


def check_timing(fields: Fields, now_ms: int) -> None:
    """Raise unless a schedule of these fields has a time to run at."""
    pattern, zone = fields.get("schedule"), fields.get("timezone")
    if pattern is None and "repeatEvery" not in fields:
        raise CommandError("Cron job must have either schedule or repeatEvery")
    try:
        if pattern is not None:
            if Cron(pattern, zone).next_ms(now_ms) is None:
                raise CronError(f"{shown(pattern)} never comes due")
        elif zone is not None:
            check_zone(zone)
    except CronError as error:
        raise CommandError(f"Invalid cron expression: {error}") from None


def _cron(answer: Answer, fields: Fields) -> Reply:
    broker = answer.session.broker
    check_timing(fields, broker.wall_ms)
    options: dict[str, Any] = {
        **fields.get("jobOptions", {}),
        **{name: fields[name] for name in ("data", "priority", "uniqueKey", "dedup") if name in fields},
    }
    if "jobName" in fields:
        options["name"] = fields["jobName"]
    admissible(answer.session, [options])
    job = admission(options, broker.wall_ms)
    data: bytes | None = job["data"]
    job = {name: value for name, value in job.items() if name not in _NOT_KEPT}
    try:
        schedule = answer.session.put_schedule(
            fields["name"],
            fields["queue"],
            data,
            pattern=fields.get("schedule"),
            every_ms=fields.get("repeatEvery"),
            zone=fields.get("timezone"),
            job=job,
            max_runs=max(0, min(fields.get("maxLimit", 0), MAX_SETTING)),
            immediately=fields["immediately"],
            prevent_overlap=fields["preventOverlap"],
            skip_missed=fields["skipMissedOnRestart"],
            skip_if_no_worker=fields["skipIfNoWorker"],
        )
    except ValueError as error:
        raise CommandError(f"Invalid cron expression: {error}") from None
    return {"cron": _shown(schedule)}


def _found(answer: Answer, fields: Fields) -> Schedule:
    schedule = answer.session.broker.engine.schedule(fields["name"])
    if schedule is None:
        raise NotFoundError("Cron job not found")
    return schedule


def _cron_get(answer: Answer, fields: Fields) -> Reply:
    return {"cron": _shown(_found(answer, fields))}


def _cron_list(answer: Answer, fields: Fields) -> Reply:
    return {"crons": [_shown(schedule) for schedule in answer.session.broker.engine.list_schedules()]}


def _cron_delete(answer: Answer, fields: Fields) -> Reply:
    answer.session.broker.engine.remove_schedule(_found(answer, fields).name)
    return {}


HANDLERS: Mapping[str, Handler] = {
    "Cron": _cron,
    "CronGet": _cron_get,
    "CronList": _cron_list,
    "CronDelete": _cron_delete,
}
