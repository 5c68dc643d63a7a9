-- Version 1. A job's key is the hidden sequence of the engine, which grows with every
-- add, so that inserts append and finished rows leave from the front. Ids are looked up
-- in memory: an index on them would cost two thirds of the insert rate.

CREATE TABLE jobs (
    seq    INTEGER PRIMARY KEY,
    queue  INTEGER NOT NULL,     -- names.id
    state  INTEGER NOT NULL,
    record BLOB NOT NULL,        -- what changes with the state, packed
    data   BLOB,                 -- the packed payload; empty: it is in payloads
    result BLOB
);

-- Payloads above the limit, so that a change of state does not rewrite them.
CREATE TABLE payloads (
    seq  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
);

-- Interned texts: names of queues and of jobs.
CREATE TABLE names (
    id   INTEGER PRIMARY KEY,
    text TEXT UNIQUE NOT NULL
);

CREATE TABLE queues (
    id    INTEGER PRIMARY KEY,   -- names.id
    state BLOB NOT NULL
);

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;
