-- Format 1, but for its journal, which format 4 keeps otherwise. docs/format.md explains each table.

-- Sessions. A number never comes back: it tells a late writer of a deleted session from the session created later under
-- the same id. `main`'s head and lease are here, so that a plain turn touches one row less.
CREATE TABLE session (
    num          INTEGER PRIMARY KEY,
    tree         INT NOT NULL,
    app          TEXT NOT NULL,
    user         TEXT NOT NULL,
    id           TEXT NOT NULL,
    agent        TEXT,
    title        TEXT,
    labels       TEXT NOT NULL,
    metadata     TEXT NOT NULL,
    created_at   INT NOT NULL,
    updated_at   INT NOT NULL,
    next_seq     INT NOT NULL,
    head_seq     INT NOT NULL,
    head_num     INT NOT NULL,
    head_segment INT NOT NULL,
    head_next    INT,
    head_lease   INT,
    head_turns   INT NOT NULL,
    usage        BLOB NOT NULL,
    inherited    BLOB NOT NULL,
    interrupted  INT NOT NULL,
    forked_id    TEXT,
    forked_seq   INT,
    deleted      INT NOT NULL,
    created_pos  INT NOT NULL,
    updated_pos  INT NOT NULL
);
-- A live session by its key.
CREATE UNIQUE INDEX session_by_key ON session (app, user, id) WHERE deleted = 0;
-- Listings by update, of everybody and of one user; deleted sessions still to be reclaimed.
CREATE INDEX session_by_update ON session (deleted, updated_pos);
CREATE INDEX session_by_owner_update ON session (app, user, updated_pos) WHERE deleted = 0;
-- Sessions of a tree, for reclaiming.
CREATE INDEX session_by_tree ON session (tree);

-- Records, in the order they were written in the whole store.
CREATE TABLE record (
    pos      INTEGER PRIMARY KEY,
    num      INT NOT NULL,
    seq      INT NOT NULL,
    segment  INT NOT NULL,
    kind     INT NOT NULL,
    turn     INT,
    attempt  INT NOT NULL,
    event    INT,
    width    INT NOT NULL,
    at       INT NOT NULL,
    snapshot BLOB,
    tip      BLOB NOT NULL,
    body     BLOB NOT NULL
);
-- A record by number; a stretch of a segment; the records that name snapshots. Foreign segments in between and records
-- without a snapshot are skipped without leaving it.
CREATE TABLE place (
    num     INT NOT NULL,
    seq     INT NOT NULL,
    segment INT NOT NULL,
    named   INT NOT NULL,
    pos     INT NOT NULL,
    PRIMARY KEY (num, seq)
) WITHOUT ROWID;

-- Records in the order of their sessions.
CREATE VIEW placed AS
SELECT place.num, place.seq, place.segment, place.named, place.pos, kind, turn, attempt, event, width, at, snapshot, tip,
    body
FROM place CROSS JOIN record ON record.pos = place.pos;

-- Stretches of the tree.
CREATE TABLE segment (
    id             INTEGER PRIMARY KEY,
    num            INT NOT NULL,
    parent_num     INT,
    parent_segment INT,
    parent_seq     INT
);
-- A session's segments, for reclaiming and verifying.
CREATE INDEX segment_by_session ON segment (num);

-- Heads of branches other than `main`.
CREATE TABLE branch (
    num          INT NOT NULL,
    name         TEXT NOT NULL,
    head_seq     INT NOT NULL,
    head_num     INT NOT NULL,
    head_segment INT NOT NULL,
    head_next    INT,
    head_lease   INT,
    head_turns   INT NOT NULL,
    PRIMARY KEY (num, name)
) WITHOUT ROWID;

-- Turns that have begun and not ended.
CREATE TABLE turn (
    num   INT NOT NULL,
    begin INT NOT NULL,
    row   BLOB NOT NULL,
    PRIMARY KEY (num, begin)
) WITHOUT ROWID;

-- Keys that make turns idempotent.
CREATE TABLE turn_key (
    num     INT NOT NULL,
    key     TEXT NOT NULL,
    turn    INT NOT NULL,
    payload BLOB NOT NULL,
    PRIMARY KEY (num, key)
) WITHOUT ROWID;

-- Snapshots. Ids made by Everturn grow with time, so new ones go to the end.
CREATE TABLE snapshot (
    id         BLOB PRIMARY KEY,
    num        INT NOT NULL,
    seq        INT NOT NULL,
    parent     BLOB,
    digest     BLOB NOT NULL,
    idx        INT NOT NULL,
    turn_index INT NOT NULL,
    event      INT,
    status     INT NOT NULL,
    finish     INT,
    error      TEXT,
    created_at INT NOT NULL,
    updated_at INT NOT NULL,
    label      TEXT,
    turn       INT
) WITHOUT ROWID;

-- The `app:` (scope 0, user '') and `user:` (scope 1) keys, without their prefixes.
CREATE TABLE scope (
    scope INT NOT NULL,
    app   TEXT NOT NULL,
    user  TEXT NOT NULL,
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (scope, app, user, key)
) WITHOUT ROWID;

-- Versions of named artifacts.
CREATE TABLE artifact (
    num     INT NOT NULL,
    name    TEXT NOT NULL,
    version INT NOT NULL,
    digest  BLOB NOT NULL,
    seq     INT NOT NULL,
    PRIMARY KEY (num, name, version)
) WITHOUT ROWID;

-- Contents of artifacts, once per tree.
CREATE TABLE blob (
    tree   INT NOT NULL,
    digest BLOB NOT NULL,
    body   BLOB NOT NULL,
    PRIMARY KEY (tree, digest)
) WITHOUT ROWID;
