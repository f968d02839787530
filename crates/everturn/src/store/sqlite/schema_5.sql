-- Format 5: each row has a checksum, `sum`, of its other columns: see docs/format.md. `row_sum` is a function of ours.
ALTER TABLE session ADD COLUMN sum INT NOT NULL DEFAULT 0;
ALTER TABLE segment ADD COLUMN sum INT NOT NULL DEFAULT 0;
ALTER TABLE branch ADD COLUMN sum INT NOT NULL DEFAULT 0;
ALTER TABLE turn ADD COLUMN sum INT NOT NULL DEFAULT 0;
ALTER TABLE turn_key ADD COLUMN sum INT NOT NULL DEFAULT 0;
ALTER TABLE snapshot ADD COLUMN sum INT NOT NULL DEFAULT 0;
ALTER TABLE scope ADD COLUMN sum INT NOT NULL DEFAULT 0;
ALTER TABLE artifact ADD COLUMN sum INT NOT NULL DEFAULT 0;
ALTER TABLE blob ADD COLUMN sum INT NOT NULL DEFAULT 0;
ALTER TABLE pack ADD COLUMN sum INT NOT NULL DEFAULT 0;
ALTER TABLE stream ADD COLUMN sum INT NOT NULL DEFAULT 0;
-- A record's sum covers its body by the body's own, so that a record can be checked without its body.
ALTER TABLE record ADD COLUMN body_sum INT NOT NULL DEFAULT 0;
ALTER TABLE record ADD COLUMN sum INT NOT NULL DEFAULT 0;

UPDATE session SET sum = row_sum(num, tree, app, user, id, agent, title, labels, metadata, created_at, updated_at, next_seq,
    head_seq, head_num, head_segment, head_next, head_lease, head_turns, usage, inherited, interrupted, forked_id,
    forked_seq, deleted, created_pos, updated_pos);
UPDATE segment SET sum = row_sum(id, num, parent_num, parent_segment, parent_seq);
UPDATE branch SET sum = row_sum(name, head_seq, head_num, head_segment, head_next, head_lease, head_turns, num);
UPDATE turn SET sum = row_sum(num, begin, row, streams);
UPDATE turn_key SET sum = row_sum(turn, payload, num, key);
UPDATE snapshot SET sum = row_sum(id, num, seq, parent, digest, idx, turn_index, event, status, finish, error, created_at,
    updated_at, label, turn);
UPDATE scope SET sum = row_sum(key, value, scope, app, user);
UPDATE artifact SET sum = row_sum(name, version, digest, seq, num);
UPDATE blob SET sum = row_sum(body, tree, digest);
UPDATE pack SET sum = row_sum(num, turn, first, count, start, size);
UPDATE stream SET sum = row_sum(num, turn, chunks, ended_at);
UPDATE record SET body_sum = row_sum(body);
UPDATE record SET sum = row_sum(num, seq, segment, kind, turn, attempt, event, width, at, snapshot, tip, body_sum);
-- Neither 0 nor 1: with one bit of it flipped it is not taken for the other.
UPDATE place SET named = 21845 WHERE named = 1;

-- Records in the order of their sessions. What is joined must agree; a place without its record stays, to be noticed.
DROP VIEW placed;
CREATE VIEW placed AS
SELECT place.num, place.seq, place.segment, place.named, place.pos, kind, turn, attempt, event, width, at, snapshot, tip,
    body_sum, record.sum, body
FROM place LEFT JOIN record ON record.pos = place.pos AND record.num = place.num AND record.seq = place.seq
    AND record.segment = place.segment;
