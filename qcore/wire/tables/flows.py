"""Flows: jobs that are added together, and the ties between jobs."""

from __future__ import annotations

from typing import Final

from qcore.wire.fields import Field
from qcore.wire.tables.shape import ID, LOCKED, TOKEN, Command

COMMANDS: Final = (
    Command(
        "PUSHF",
        (Field("jobs", "any", required=True, help="entries of id, queue and input (job options)"),),
        ("data.jobs",),
        ("flow <text>", "Flow job <id> already exists"),
        "Add the jobs of a flow, all or none; no worker sees a part.",
        "committed",
    ),
    Command(
        "MoveToWaitingChildren",
        (ID, TOKEN),
        ("data.moved",),
        ("Job is not active", *LOCKED[:2]),
        "Park an active job until its children are done; without such, it goes back to its queue.",
        "committed",
    ),
    Command(
        "UpdateParent",
        (
            Field("childId", "id", required=True, help="job that is to be the child"),
            Field("parentId", "id", required=True, help="job that is to wait for it"),
            Field("parentToken", "text", help="lock token of an active parent"),
        ),
        (),
        (
            "A flow job cannot be its own parent",
            "Child job not found: <id>",
            "Parent job not found: <id>",
            "Parent job <id> is not linkable",
            "Child job <id> already belongs to parent <id>",
            "flow contains a dependency cycle",
        ),
        "Make a job the child of another.",
        "committed",
    ),
    Command(
        "RemoveChildDependency",
        (ID,),
        ("removed",),
        ("Job not found: <id>", "Job <id> has no parent"),
        "Let a parent wait for this child no longer.",
        "committed",
    ),
    Command(
        "RemoveUnprocessedChildren",
        (ID,),
        (),
        (),
        "Remove the queued children of a job, which may run then.",
        "committed",
    ),
    Command(
        "GetChildrenValues",
        (ID,),
        ("data.values",),
        (),
        "Read the results of completed children, by queue:id.",
    ),
    Command(
        "GetDependencies",
        (ID, Field("limit", "int", minimum=0, help="most ids of each kind; absent: all")),
        (
            "data.processed",
            "data.unprocessed",
            "data.failed",
            "data.ignored",
            "data.missing",
            "data.counts",
        ),
        ("Job not found",),
        "Read what a job is tied to: results by id of what is completed, ids of the rest, and how many "
        "there are. A missing id is neither there nor known as completed.",
    ),
    Command(
        "GetFailedChildrenValues",
        (ID,),
        ("values",),
        (),
        "Read the errors of children that failed with continueParentOnFailure, by queue:id.",
    ),
    Command(
        "GetIgnoredChildrenFailures",
        (ID,),
        ("values",),
        (),
        "Read the errors of children that failed with ignoreDependencyOnFailure, by queue:id.",
    ),
)
