-- Receipts of sagas that are over, as they were first handed out: the jobs that they are
-- made of are removed in time, and a receipt stays the same.
CREATE TABLE saga_receipt (
    tenant      text COLLATE "C" NOT NULL,
    workflow_id text COLLATE "C" NOT NULL,
    -- Of which end: a success that comes late begins the rollback again.
    ended_at    timestamptz NOT NULL,
    document    bytea NOT NULL,
    made_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, workflow_id, ended_at),
    FOREIGN KEY (tenant, workflow_id) REFERENCES saga ON DELETE CASCADE
);
