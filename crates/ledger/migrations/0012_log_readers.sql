-- Who reads the change log and the audit trail behind their writers, and how far each has
-- come. (change_cursor and audit_cursor are for programs of the version before.)
CREATE TABLE log_reader (
    reader   text COLLATE "C" NOT NULL,
    shard    smallint NOT NULL,
    log      text COLLATE "C" NOT NULL CHECK (log IN ('changes', 'audit')),
    xid      bigint NOT NULL,
    seq      bigint NOT NULL,
    -- Entries wait for it however long it takes. For others they wait within a bound.
    required boolean NOT NULL,
    -- Entries were removed before it had read them: it must read the jobs themselves.
    rescan   boolean NOT NULL DEFAULT false,
    PRIMARY KEY (reader, shard)
);
INSERT INTO log_reader (reader, shard, log, xid, seq, required)
SELECT 'events', shard, 'changes', xid, seq, true FROM change_cursor
UNION ALL
SELECT 'audit', 0, 'audit', xid, id, true FROM audit_cursor;

-- What no statement may break, whoever writes it. Not valid for what is there: checking it
-- would hold up everybody, and every row is written again before its job ends.
ALTER TABLE job_state
    ADD CONSTRAINT job_state_known CHECK (state IN (1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15)) NOT VALID,
    ADD CONSTRAINT job_state_open CHECK (open = (state < 10)) NOT VALID,
    ADD CONSTRAINT job_state_run CHECK (state NOT IN (2, 3, 4) OR dispatch_id IS NOT NULL) NOT VALID;
