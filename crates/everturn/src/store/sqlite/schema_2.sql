-- Format 2: the streams of turns. docs/format.md explains each table.

-- Chunks that were kept together, in the order they were written in the whole store: `count` of them from number `first`
-- on. `start` is how much text the attempt had before them, `size` how much they have.
CREATE TABLE pack (
    at    INTEGER PRIMARY KEY,
    num   INT NOT NULL,
    turn  INT NOT NULL,
    first INT NOT NULL,
    count INT NOT NULL,
    start INT NOT NULL,
    size  INT NOT NULL,
    body  BLOB NOT NULL
);
-- A turn's packs: both ends, and from a chunk on.
CREATE UNIQUE INDEX pack_by_turn ON pack (num, turn, first);

-- Streams of turns that have ended.
CREATE TABLE stream (
    num      INT NOT NULL,
    turn     INT NOT NULL,
    chunks   INT NOT NULL,
    ended_at INT,
    PRIMARY KEY (num, turn)
) WITHOUT ROWID;
-- Those that still have packs, the first to be over first.
CREATE INDEX stream_by_end ON stream (ended_at) WHERE ended_at IS NOT NULL;

-- Whether a running turn has kept chunks.
ALTER TABLE turn ADD COLUMN streams INT NOT NULL DEFAULT 0;
