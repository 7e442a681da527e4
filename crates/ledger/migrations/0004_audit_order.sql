-- The audit trail is told on the bus behind its writers, in the order of its
-- transactions: an entry is read only when no older transaction is still under way, so
-- that a slow writer's entry is never jumped over (as in change_log).
ALTER TABLE audit_log
    ADD COLUMN xid bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint);
CREATE INDEX audit_log_order ON audit_log (xid, id);

-- How far it has been told. What was there before counts as told.
CREATE TABLE audit_cursor (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    xid bigint NOT NULL,
    id  bigint NOT NULL
);
INSERT INTO audit_cursor (xid, id)
SELECT pg_current_xact_id()::text::bigint, coalesce(max(id), 0) FROM audit_log;
