-- Version 2: small values beside the jobs; what they mean is said in base.py.
CREATE TABLE evidence (
    key   INTEGER PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE keys (
    key   INTEGER PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE lanes (
    key   TEXT PRIMARY KEY,      -- queues.id, a colon, the name of the group
    value BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE logs (
    key   INTEGER PRIMARY KEY,   -- jobs.seq
    value BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE minutes (
    key   INTEGER PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE schedules (
    key   TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE telemetry (
    key   INTEGER PRIMARY KEY,   -- queues.id
    value BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE webhooks (
    key   TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;
