-- Each statement under its name. Parameters only; nothing is ever pasted into a statement.

-- find_session
SELECT * FROM session WHERE app = ?1 AND user = ?2 AND id = ?3 AND deleted = 0;
-- session
SELECT * FROM session WHERE num = ?1;
-- deleted_sessions
SELECT * FROM session WHERE deleted = 1 ORDER BY num;
-- tree_sessions
SELECT * FROM session WHERE tree = ?1 ORDER BY num;
-- put_session
INSERT INTO session (num, tree, app, user, id, agent, title, labels, metadata, created_at, updated_at, next_seq, head_seq,
    head_num, head_segment, head_next, head_lease, head_turns, usage, inherited, interrupted, forked_id, forked_seq,
    deleted, created_pos, updated_pos, sum)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24,
    ?25, ?26, row_sum(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22,
    ?23, ?24, ?25, ?26))
ON CONFLICT (num) DO UPDATE SET agent = excluded.agent, title = excluded.title, labels = excluded.labels,
    metadata = excluded.metadata, updated_at = excluded.updated_at, next_seq = excluded.next_seq,
    head_seq = excluded.head_seq, head_num = excluded.head_num, head_segment = excluded.head_segment,
    head_next = excluded.head_next, head_lease = excluded.head_lease, head_turns = excluded.head_turns,
    usage = excluded.usage, interrupted = excluded.interrupted, deleted = excluded.deleted,
    updated_pos = excluded.updated_pos, sum = excluded.sum;
-- remove_session
DELETE FROM session WHERE num = ?1;

-- record
SELECT num, seq, segment, kind, turn, attempt, event, width, at, snapshot, tip, body_sum, sum, body FROM placed
WHERE num = ?1 AND seq = ?2;
-- meta
SELECT num, seq, segment, kind, turn, attempt, event, width, at, snapshot, tip, body_sum, sum FROM placed WHERE num = ?1 AND seq = ?2;
-- scan_all
SELECT num, seq, segment, kind, turn, attempt, event, width, at, snapshot, tip, body_sum, sum, body FROM placed
WHERE num = ?1 AND seq BETWEEN ?2 AND ?3 ORDER BY seq;
-- scan_all_newest
SELECT num, seq, segment, kind, turn, attempt, event, width, at, snapshot, tip, body_sum, sum, body FROM placed
WHERE num = ?1 AND seq BETWEEN ?2 AND ?3 ORDER BY seq DESC;
-- scan_segment
SELECT num, seq, segment, kind, turn, attempt, event, width, at, snapshot, tip, body_sum, sum, body FROM placed
WHERE num = ?1 AND seq BETWEEN ?2 AND ?3 AND segment = ?4 ORDER BY seq;
-- scan_segment_newest
SELECT num, seq, segment, kind, turn, attempt, event, width, at, snapshot, tip, body_sum, sum, body FROM placed
WHERE num = ?1 AND seq BETWEEN ?2 AND ?3 AND segment = ?4 ORDER BY seq DESC;
-- metas_all
SELECT num, seq, segment, kind, turn, attempt, event, width, at, snapshot, tip, body_sum, sum FROM placed
WHERE num = ?1 AND seq BETWEEN ?2 AND ?3 ORDER BY seq;
-- metas_all_newest
SELECT num, seq, segment, kind, turn, attempt, event, width, at, snapshot, tip, body_sum, sum FROM placed
WHERE num = ?1 AND seq BETWEEN ?2 AND ?3 ORDER BY seq DESC;
-- metas_segment
SELECT num, seq, segment, kind, turn, attempt, event, width, at, snapshot, tip, body_sum, sum FROM placed
WHERE num = ?1 AND seq BETWEEN ?2 AND ?3 AND segment = ?4 ORDER BY seq;
-- metas_segment_newest
SELECT num, seq, segment, kind, turn, attempt, event, width, at, snapshot, tip, body_sum, sum FROM placed
WHERE num = ?1 AND seq BETWEEN ?2 AND ?3 AND segment = ?4 ORDER BY seq DESC;
-- named_all
SELECT num, seq, segment, kind, turn, attempt, event, width, at, snapshot, tip, body_sum, sum FROM placed
WHERE num = ?1 AND seq BETWEEN ?2 AND ?3 AND named IS NOT 0 ORDER BY seq;
-- named_all_newest
SELECT num, seq, segment, kind, turn, attempt, event, width, at, snapshot, tip, body_sum, sum FROM placed
WHERE num = ?1 AND seq BETWEEN ?2 AND ?3 AND named IS NOT 0 ORDER BY seq DESC;
-- named_segment
SELECT num, seq, segment, kind, turn, attempt, event, width, at, snapshot, tip, body_sum, sum FROM placed
WHERE num = ?1 AND seq BETWEEN ?2 AND ?3 AND segment = ?4 AND named IS NOT 0 ORDER BY seq;
-- named_segment_newest
SELECT num, seq, segment, kind, turn, attempt, event, width, at, snapshot, tip, body_sum, sum FROM placed
WHERE num = ?1 AND seq BETWEEN ?2 AND ?3 AND segment = ?4 AND named IS NOT 0 ORDER BY seq DESC;
-- append
INSERT INTO record (pos, num, seq, segment, kind, turn, attempt, event, width, at, snapshot, tip, body, body_sum, sum)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, row_sum(?13),
    row_sum(?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, row_sum(?13)));
-- records_after
SELECT num, seq, segment, kind, turn, attempt, event, width, at, snapshot, tip, body_sum, sum, pos FROM record WHERE pos > ?1 ORDER BY pos;
-- body
SELECT body, body_sum FROM record WHERE pos = ?1;
-- put_place
INSERT INTO place (num, seq, segment, named, pos) VALUES (?1, ?2, ?3, ?4, ?5);
-- pos_at
SELECT pos FROM place WHERE num = ?1 AND pos <= ?2 ORDER BY seq DESC LIMIT 1;
-- removable_records
SELECT seq, pos, snapshot FROM placed WHERE num = ?1 AND seq BETWEEN ?2 AND ?3 AND segment = ?4 ORDER BY seq LIMIT ?5;
-- remove_record
DELETE FROM record WHERE pos = ?1;
-- remove_place
DELETE FROM place WHERE num = ?1 AND seq = ?2;

-- segment
SELECT id, num, parent_num, parent_segment, parent_seq, sum FROM segment WHERE id = ?1;
-- segments
SELECT id, num, parent_num, parent_segment, parent_seq, sum FROM segment WHERE num = ?1 ORDER BY id;
-- last_segment
SELECT max(id) FROM segment;
-- put_segment
INSERT INTO segment (id, num, parent_num, parent_segment, parent_seq, sum)
VALUES (?1, ?2, ?3, ?4, ?5, row_sum(?1, ?2, ?3, ?4, ?5));
-- remove_segments
DELETE FROM segment WHERE num = ?1;

-- branch
SELECT name, head_seq, head_num, head_segment, head_next, head_lease, head_turns, num, sum
FROM branch WHERE num = ?1 AND name = ?2;
-- branches
SELECT name, head_seq, head_num, head_segment, head_next, head_lease, head_turns, num, sum
FROM branch WHERE num = ?1 ORDER BY name;
-- put_branch
INSERT INTO branch (num, name, head_seq, head_num, head_segment, head_next, head_lease, head_turns, sum)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, row_sum(?2, ?3, ?4, ?5, ?6, ?7, ?8, ?1))
ON CONFLICT (num, name) DO UPDATE SET head_seq = excluded.head_seq, head_num = excluded.head_num,
    head_segment = excluded.head_segment, head_next = excluded.head_next, head_lease = excluded.head_lease,
    head_turns = excluded.head_turns, sum = excluded.sum;
-- delete_branch
DELETE FROM branch WHERE num = ?1 AND name = ?2;
-- remove_branches
DELETE FROM branch WHERE num = ?1;

-- turn
SELECT num, begin, row, streams, sum FROM turn WHERE num = ?1 AND begin = ?2;
-- turns
SELECT num, begin, row, streams, sum FROM turn WHERE num = ?1 ORDER BY begin;
-- all_turns
SELECT num, begin, row, streams, sum FROM turn ORDER BY num, begin;
-- put_turn
INSERT INTO turn (num, begin, row, streams, sum) VALUES (?1, ?2, ?3, ?4, row_sum(?1, ?2, ?3, ?4))
ON CONFLICT (num, begin) DO UPDATE SET row = excluded.row, streams = excluded.streams, sum = excluded.sum;
-- delete_turn
DELETE FROM turn WHERE num = ?1 AND begin = ?2;
-- remove_turns
DELETE FROM turn WHERE num = ?1;

-- key
SELECT turn, payload, num, key, sum FROM turn_key WHERE num = ?1 AND key = ?2;
-- put_key
INSERT OR REPLACE INTO turn_key (num, key, turn, payload, sum) VALUES (?1, ?2, ?3, ?4, row_sum(?3, ?4, ?1, ?2));
-- remove_keys
DELETE FROM turn_key WHERE num = ?1;

-- snapshot
SELECT id, num, seq, parent, digest, idx, turn_index, event, status, finish, error, created_at, updated_at, label, turn,
    sum
FROM snapshot WHERE id = ?1;
-- newest_snapshot
SELECT max(id) AS id FROM snapshot;
-- put_snapshot
INSERT OR REPLACE INTO snapshot
    (id, num, seq, parent, digest, idx, turn_index, event, status, finish, error, created_at, updated_at, label, turn,
    sum)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15,
    row_sum(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15));
-- remove_snapshot
DELETE FROM snapshot WHERE id = ?1;

-- scope
SELECT key, value, scope, app, user, sum FROM scope WHERE scope = ?1 AND app = ?2 AND user = ?3 ORDER BY key;
-- set_scope
INSERT INTO scope (scope, app, user, key, value, sum) VALUES (?1, ?2, ?3, ?4, ?5, row_sum(?4, ?5, ?1, ?2, ?3))
ON CONFLICT (scope, app, user, key) DO UPDATE SET value = excluded.value, sum = excluded.sum;
-- remove_scope
DELETE FROM scope WHERE scope = ?1 AND app = ?2 AND user = ?3 AND key = ?4;

-- artifacts
SELECT name, version, digest, seq, num, sum FROM artifact WHERE num = ?1 ORDER BY name, version;
-- artifacts_named
SELECT name, version, digest, seq, num, sum FROM artifact WHERE num = ?1 AND name = ?2 ORDER BY version;
-- put_artifact
INSERT INTO artifact (num, name, version, digest, seq, sum) VALUES (?1, ?2, ?3, ?4, ?5, row_sum(?2, ?3, ?4, ?5, ?1));
-- remove_artifacts
DELETE FROM artifact WHERE num = ?1;
-- blob
SELECT body, tree, digest, sum FROM blob WHERE tree = ?1 AND digest = ?2;
-- has_blobs
SELECT EXISTS (SELECT 1 FROM blob WHERE tree = ?1);
-- put_blob
INSERT OR IGNORE INTO blob (tree, digest, body, sum) VALUES (?1, ?2, ?3, row_sum(?3, ?1, ?2));
-- blob_digests
SELECT digest FROM blob WHERE tree = ?1;
-- remove_blob
DELETE FROM blob WHERE tree = ?1 AND digest = ?2;

-- oldest_pack
SELECT num, turn, first, count, start, size, sum FROM pack WHERE num = ?1 AND turn = ?2 ORDER BY first LIMIT 1;
-- newest_pack
SELECT num, turn, first, count, start, size, sum FROM pack WHERE num = ?1 AND turn = ?2 ORDER BY first DESC LIMIT 1;
-- packs
SELECT num, turn, first, count, start, size, sum, body FROM pack
WHERE num = ?1 AND turn = ?2 AND first >= coalesce(
    (SELECT first FROM pack WHERE num = ?1 AND turn = ?2 AND first <= ?3 ORDER BY first DESC LIMIT 1), ?3)
ORDER BY first;
-- put_pack
INSERT INTO pack (num, turn, first, count, start, size, body, sum)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, row_sum(?1, ?2, ?3, ?4, ?5, ?6));
-- remove_pack
DELETE FROM pack WHERE num = ?1 AND turn = ?2 AND first = ?3;
-- remove_packs_of_turn
DELETE FROM pack WHERE num = ?1 AND turn = ?2;
-- remove_packs
DELETE FROM pack WHERE num = ?1;
-- stream
SELECT num, turn, chunks, ended_at, sum FROM stream WHERE num = ?1 AND turn = ?2;
-- stream_ended_by
SELECT num, turn, chunks, ended_at, sum FROM stream WHERE ended_at <= ?1 ORDER BY ended_at LIMIT 1;
-- any_stream
SELECT EXISTS (SELECT 1 FROM stream WHERE ended_at IS NOT NULL);
-- put_stream
INSERT OR REPLACE INTO stream (num, turn, chunks, ended_at, sum)
VALUES (?1, ?2, ?3, ?4, row_sum(?1, ?2, ?3, ?4));
-- remove_streams
DELETE FROM stream WHERE num = ?1;

-- data_version
PRAGMA data_version;
-- slot
SELECT content FROM slot WHERE at = ?1;
-- slots
SELECT at, content FROM slot WHERE at >= ?1 ORDER BY at;
-- put_slot
INSERT OR REPLACE INTO slot (at, content) VALUES (?1, ?2);
-- remove_slots
DELETE FROM slot WHERE at >= ?1;
-- give_back
PRAGMA incremental_vacuum(256);
-- has_old_journal
SELECT count(*) FROM sqlite_schema WHERE name = 'journal';
-- old_journal
SELECT position, num, changes FROM journal ORDER BY at;
-- drop_old_journal
DROP TABLE journal;

-- list_created
SELECT * FROM session WHERE num > ?1 AND deleted = 0 ORDER BY num;
-- list_created_newest
SELECT * FROM session WHERE num < ?1 AND deleted = 0 ORDER BY num DESC;
-- list_owner_created
SELECT * FROM session INDEXED BY session_by_key
WHERE app = ?2 AND user = ?3 AND num > ?1 AND deleted = 0 ORDER BY num;
-- list_owner_created_newest
SELECT * FROM session INDEXED BY session_by_key
WHERE app = ?2 AND user = ?3 AND num < ?1 AND deleted = 0 ORDER BY num DESC;
-- list_updated
SELECT * FROM session INDEXED BY session_by_update WHERE deleted = 0 AND updated_pos > ?1 ORDER BY updated_pos;
-- list_updated_newest
SELECT * FROM session INDEXED BY session_by_update WHERE deleted = 0 AND updated_pos < ?1 ORDER BY updated_pos DESC;
-- list_owner_updated
SELECT * FROM session INDEXED BY session_by_owner_update
WHERE app = ?2 AND user = ?3 AND updated_pos > ?1 AND deleted = 0 ORDER BY updated_pos;
-- list_owner_updated_newest
SELECT * FROM session INDEXED BY session_by_owner_update
WHERE app = ?2 AND user = ?3 AND updated_pos < ?1 AND deleted = 0 ORDER BY updated_pos DESC;

-- integrity
PRAGMA integrity_check(100);
-- orphans
SELECT what, num, at, count(*) AS rows FROM (
    SELECT 'a record' AS what, num, seq AS at FROM record
    UNION ALL SELECT 'the place of a record', num, seq FROM place
    UNION ALL SELECT 'a segment', num, id FROM segment
    UNION ALL SELECT 'a branch', num, head_seq FROM branch
    UNION ALL SELECT 'a running turn', num, begin FROM turn
    UNION ALL SELECT 'a key', num, turn FROM turn_key
    UNION ALL SELECT 'a snapshot', num, seq FROM snapshot
    UNION ALL SELECT 'a version of an artifact', num, seq FROM artifact
    UNION ALL SELECT 'chunks of a stream', num, turn FROM pack
    UNION ALL SELECT 'a stream', num, turn FROM stream
) AS part WHERE num NOT IN (SELECT num FROM session) GROUP BY what, num ORDER BY num, what;
-- unplaced
SELECT num, seq FROM record AS r WHERE pos <= ?1
    AND NOT EXISTS (SELECT 1 FROM place WHERE place.num = r.num AND place.seq = r.seq AND place.pos = r.pos
        AND place.segment = r.segment AND (place.named IS NOT 0) = (r.snapshot IS NOT NULL));
-- every_record
SELECT num, seq, segment, kind, turn, attempt, event, width, at, snapshot, tip, body_sum, sum, body FROM record;
-- every_key
SELECT turn, payload, num, key, sum FROM turn_key;
-- every_snapshot
SELECT id, num, seq, parent, digest, idx, turn_index, event, status, finish, error, created_at, updated_at, label, turn,
    sum
FROM snapshot;
-- every_scope
SELECT key, value, scope, app, user, sum FROM scope;
-- every_blob
SELECT body, tree, digest, sum FROM blob;
-- every_session
SELECT * FROM session;
-- every_segment
SELECT id, num, parent_num, parent_segment, parent_seq, sum FROM segment;
-- every_branch
SELECT name, head_seq, head_num, head_segment, head_next, head_lease, head_turns, num, sum FROM branch;
-- every_artifact
SELECT name, version, digest, seq, num, sum FROM artifact;
-- every_pack
SELECT num, turn, first, count, start, size, sum FROM pack;
-- every_stream
SELECT num, turn, chunks, ended_at, sum FROM stream;
