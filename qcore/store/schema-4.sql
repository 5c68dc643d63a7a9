-- Version 4: what changes in rows that exist is appended here, and moved into its tables
-- later, many changes at once and in the order of their keys; see changelog.pyx.
-- Row 0 names the first page that still counts and how many there are. The others are a page
-- each, written again and again, and never of another size, so that a change of one dirties
-- nothing else.
CREATE TABLE changelog (
    n    INTEGER PRIMARY KEY,
    page BLOB NOT NULL
);

WITH RECURSIVE slots(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM slots WHERE n < 16)
INSERT INTO changelog SELECT 0, x'010000000000000010000000000000008dbe9f0d25909269' UNION ALL SELECT n, zeroblob(4050) FROM slots;
