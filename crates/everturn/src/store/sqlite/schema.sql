-- Format 1. docs/format.md explains each table.

-- What was written since the other tables were last filled, one entry for each transaction: `changes` to rows that are
-- not in their tables yet. `position` and `num` are the store's last position and the last session number given. The
-- first entry has no changes: the tables are filled up to its position.
CREATE TABLE journal (
    at       INTEGER PRIMARY KEY,
    position INTEGER NOT NULL,
    num      INTEGER NOT NULL,
    changes  BLOB NOT NULL
);

-- Sessions. A number never comes back: it tells a late writer of a deleted session from the session created later under
-- the same id. `main`'s head and lease are here, so that a plain turn touches one row less.
CREATE TABLE session (
    num          INTEGER PRIMARY KEY,
    tree         INTEGER NOT NULL,
    app          TEXT NOT NULL,
    user         TEXT NOT NULL,
    id           TEXT NOT NULL,
    agent        TEXT,
    title        TEXT,
    labels       TEXT NOT NULL,
    metadata     TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    next_seq     INTEGER NOT NULL,
    head_seq     INTEGER NOT NULL,
    head_num     INTEGER NOT NULL,
    head_segment INTEGER NOT NULL,
    head_next    INTEGER,
    head_lease   INTEGER,
    head_turns   INTEGER NOT NULL,
    usage        BLOB NOT NULL,
    inherited    BLOB NOT NULL,
    interrupted  INTEGER NOT NULL,
    forked_id    TEXT,
    forked_seq   INTEGER,
    deleted      INTEGER NOT NULL,
    created_pos  INTEGER NOT NULL,
    updated_pos  INTEGER NOT NULL
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
    num      INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    segment  INTEGER NOT NULL,
    kind     INTEGER NOT NULL,
    turn     INTEGER,
    attempt  INTEGER NOT NULL,
    event    INTEGER,
    width    INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    snapshot BLOB,
    tip      BLOB NOT NULL,
    body     BLOB NOT NULL
);
-- A record by number; a stretch of a segment; the records that name snapshots. Foreign segments in between and records
-- without a snapshot are skipped without leaving it.
CREATE TABLE place (
    num     INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    named   INTEGER NOT NULL,
    pos     INTEGER NOT NULL,
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
    num            INTEGER NOT NULL,
    parent_num     INTEGER,
    parent_segment INTEGER,
    parent_seq     INTEGER
);
-- A session's segments, for reclaiming and verifying.
CREATE INDEX segment_by_session ON segment (num);

-- Heads of branches other than `main`.
CREATE TABLE branch (
    num          INTEGER NOT NULL,
    name         TEXT NOT NULL,
    head_seq     INTEGER NOT NULL,
    head_num     INTEGER NOT NULL,
    head_segment INTEGER NOT NULL,
    head_next    INTEGER,
    head_lease   INTEGER,
    head_turns   INTEGER NOT NULL,
    PRIMARY KEY (num, name)
) WITHOUT ROWID;

-- Turns that have begun and not ended.
CREATE TABLE turn (
    num   INTEGER NOT NULL,
    begin INTEGER NOT NULL,
    row   BLOB NOT NULL,
    PRIMARY KEY (num, begin)
) WITHOUT ROWID;

-- Keys that make turns idempotent.
CREATE TABLE turn_key (
    num     INTEGER NOT NULL,
    key     TEXT NOT NULL,
    turn    INTEGER NOT NULL,
    payload BLOB NOT NULL,
    PRIMARY KEY (num, key)
) WITHOUT ROWID;

-- Snapshots. Ids made by Everturn grow with time, so new ones go to the end.
CREATE TABLE snapshot (
    id         BLOB PRIMARY KEY,
    num        INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    parent     BLOB,
    digest     BLOB NOT NULL,
    idx        INTEGER NOT NULL,
    turn_index INTEGER NOT NULL,
    event      INTEGER,
    status     INTEGER NOT NULL,
    finish     INTEGER,
    error      TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    label      TEXT,
    turn       INTEGER
) WITHOUT ROWID;

-- The `app:` (scope 0, user '') and `user:` (scope 1) keys, without their prefixes.
CREATE TABLE scope (
    scope INTEGER NOT NULL,
    app   TEXT NOT NULL,
    user  TEXT NOT NULL,
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (scope, app, user, key)
) WITHOUT ROWID;

-- Versions of named artifacts.
CREATE TABLE artifact (
    num     INTEGER NOT NULL,
    name    TEXT NOT NULL,
    version INTEGER NOT NULL,
    digest  BLOB NOT NULL,
    seq     INTEGER NOT NULL,
    PRIMARY KEY (num, name, version)
) WITHOUT ROWID;

-- Contents of artifacts, once per tree.
CREATE TABLE blob (
    tree   INTEGER NOT NULL,
    digest BLOB NOT NULL,
    body   BLOB NOT NULL,
    PRIMARY KEY (tree, digest)
) WITHOUT ROWID;

INSERT INTO journal (at, position, num, changes) VALUES (0, 0, 0, x'');
