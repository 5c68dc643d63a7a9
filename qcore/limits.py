"""Bounds and defaults, each with its unit in its name."""

from __future__ import annotations

MAX_FRAME_BYTES = 64 * 1024 * 1024
#: Before a connection has presented a token that is asked for.
MAX_UNAUTHENTICATED_BYTES = 64 * 1024
#: Of the JSON text of data or a result, in UTF-16 units; three bytes each is the most that a text takes.
MAX_DATA_CHARS = 10 * 1024 * 1024
MAX_DATA_BYTES = 3 * MAX_DATA_CHARS
MAX_NESTING = 512
MAX_NAME_CHARS = 256
MAX_PULL_COUNT = 1000
MAX_PULL_TIMEOUT_MS = 60_000
DEFAULT_MAX_WAITS = 10_000
MAX_UNREAD_EVENT_BYTES = 64 * 1024 * 1024
MAX_PULL_REPLY_BYTES = 32 * 1024 * 1024
MAX_TIMELINE_ENTRIES = 20
MAX_STACK_LINES = 100
MAX_LOG_LINES = 100
MAX_LOGGED_JOBS = 10_000
MAX_KEPT_KEYS = 100_000
MAX_LINE_CHARS = 65_536
DEFAULT_MAX_WEBHOOKS = 1000
DEFAULT_MAX_WAITING_POSTS = 10_000
#: A payload of the greatest size always has room, and some more.
MIN_WAITING_POST_BYTES = 2 * MAX_DATA_BYTES
DEFAULT_MAX_WAITING_POST_BYTES = 64 * 1024 * 1024
#: Names of webhooks that are looked up at a time: more than there are posts, as those that hang go on.
MAX_LOOKUPS = 32
MAX_GROUP_PRIORITY = 2_097_151

DEFAULT_ATTEMPTS = 3
MAX_ATTEMPTS = 2_147_483_647
DEFAULT_BACKOFF_MS = 1000
MAX_BACKOFF_OPTION_MS = 86_400_000
DEFAULT_BACKOFF_CAP_MS = 3_600_000
DEFAULT_LOCK_TTL_MS = 30_000
DEFAULT_STACK_LINES = 10
MAX_TIME_MS = 4_320_000_000_000_000

#: How long a schedule that could not be run is put off.
SCHEDULE_RETRY_MS = 60_000

DEFAULT_MAX_COMPLETED_JOBS = 50_000
#: A payload above this is left out of the rows of a journal.
MAX_JOURNAL_PAYLOAD_BYTES = 1024
DEFAULT_COMPLETED_RETENTION_MS = 604_800_000
MIN_COMPLETED_RETENTION_MS = 1000
MAX_COMPLETED_RETENTION_MS = 3_153_600_000_000  # a hundred years
#: Rows that are read at once where all of them are walked through.
ARCHIVE_PAGE_ROWS = 512
#: Completed jobs that may wait in memory for the end of a walk through the archive; then it is given up.
MAX_LEAVING_JOBS = 200_000
#: Policies of removal are applied to the archive at most so often.
ARCHIVE_TRIM_MS = 5000
#: Between two steps of the walk that looks for completed jobs whose time is over.
ARCHIVE_TURN_MS = 20
#: Such walks begin at least so often while there is something that may be over.
ARCHIVE_PASS_MOST_MS = 3_600_000
#: Jobs that a page of a listing may lie behind when it goes into the archive.
MAX_ARCHIVE_OFFSET = 100_000
DEFAULT_MAX_QUEUE_EVENTS = 10_000
DEFAULT_MAX_METRIC_MINUTES = 20_160
DEFAULT_MAX_WAITING_DEPS = 10_000
#: Of more new jobs than these that wait for their cut the oldest are encoded ahead, so that no cut holds
#: everybody up. Of the others, what happens to them next may still become one row with the first.
AHEAD_ROWS = 2048
#: Before a failed commit is tried again, at first and while somebody waits for it.
DEFAULT_RETRY_MS = 200
#: That wait doubles with each failure, up to this.
MAX_RETRY_MS = 30_000
MAX_FLOW_JOBS = 10_000
MAX_FLOW_DEPTH = 100
MAX_FLOW_BYTES = 64 * 1024 * 1024
MAX_FLOW_ID_CHARS = 1024
DEFAULT_METRIC_QUEUES = 100
#: A queue that nothing is left of is forgotten when it has not been used for so long ...
QUEUE_IDLE_MS = 600_000
#: ... which is looked for so often,
QUEUE_LOOK_MS = 300_000
#: in steps of so many queues.
QUEUE_LOOK_STEPS = 1000
#: So many times the evidence that is kept may stand in rows, with what was taken back of it.
EVIDENCE_SLACK = 4
#: What was counted of so many forgotten queues is kept.
FORGOTTEN_QUEUES = 100_000
#: Upper bounds of the buckets of times; one more is open.
LATENCY_BOUNDS_MS = (0.1, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)
DEFAULT_DLQ_MAX_ENTRIES = 10_000
DEFAULT_DLQ_MAX_AGE_MS = 604_800_000
DEFAULT_MAX_STALLS = 3
#: Silence after which a delivery that nobody holds is given up, also where stalls are not looked for.
ORPHAN_SILENCE_MS = 30 * 60_000
#: Between two searches of a queue for stalled jobs, unless its stall interval is shorter.
STALL_CHECK_MS = 1_000
