-- Version 3: events of queues, some in a row; see base.py.
CREATE TABLE journal (
    key   INTEGER PRIMARY KEY,
    value BLOB NOT NULL
);
