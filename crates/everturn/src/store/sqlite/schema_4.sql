-- Format 4: the journal is kept in slots of one size. docs/format.md explains them.

-- What was written since the other tables were last filled. Each fills a page and is written over in place.
CREATE TABLE slot (
    at      INTEGER PRIMARY KEY,
    content BLOB NOT NULL
);
