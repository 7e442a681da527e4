-- Sagas: what to undo when one step of a workflow's run fails for good.

-- All three are NULL of plain jobs, which pay nothing for them.
ALTER TABLE job_request
    ADD COLUMN workflow_id text COLLATE "C",
    -- When it is to be undone: 1 if it succeeded, 2 if a run of it may have begun.
    ADD COLUMN undo        smallint,
    -- The job that this one undoes. Only the saga manager writes it.
    ADD COLUMN compensates text COLLATE "C";
-- What came before: the needle is "workflow_id" in double quotes. Postgres cannot take a
-- string with \u0000 apart, so it is looked past.
UPDATE job_request
SET workflow_id = left(replace(convert_from(spec, 'UTF8'), '\u0000', '')::json->>'workflow_id', 256)
WHERE position('\x22776f726b666c6f775f696422'::bytea IN spec) > 0;
CREATE INDEX job_request_workflow ON job_request (tenant, workflow_id, created_at)
    WHERE workflow_id IS NOT NULL;

-- One run of a workflow. The leader inserts rows and never updates one, so that it never
-- waits for a row that a manager or a person's action holds.
CREATE TABLE saga (
    tenant              text COLLATE "C" NOT NULL,
    workflow_id         text COLLATE "C" NOT NULL,
    -- SagaState in crates/model/src/saga/state.rs.
    state               smallint NOT NULL DEFAULT 1,
    -- 1 sequential, 2 parallel.
    mode                smallint NOT NULL DEFAULT 1,
    -- Raised by every change; whoever read another value has read something else.
    version             bigint NOT NULL DEFAULT 0,
    trigger             text COLLATE "C",
    reason              text,
    waiting_reason      text,
    -- When a manager must look again. NULL: when a compensation ends or somebody acts.
    next_at             timestamptz,
    opened_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    rollback_started_at timestamptz,
    ended_at            timestamptz,
    PRIMARY KEY (tenant, workflow_id),
    CHECK (state BETWEEN 1 AND 5),
    CHECK (mode IN (1, 2))
) WITH (fillfactor = 70);
CREATE INDEX saga_listing ON saga (tenant, opened_at);
CREATE INDEX saga_due ON saga (next_at) WHERE state = 2 AND next_at IS NOT NULL;
CREATE INDEX saga_ended ON saga (ended_at) WHERE state IN (3, 5);
CREATE INDEX saga_unfinished ON saga (state) WHERE state IN (2, 4);

-- What is to be undone, in the order in which it was done.
CREATE TABLE saga_record (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant      text COLLATE "C" NOT NULL,
    workflow_id text COLLATE "C" NOT NULL,
    -- The job to undo; each once.
    job_id      text COLLATE "C" NOT NULL UNIQUE,
    -- 1 it succeeded, 2 it was attempted, 3 its success came late.
    kind        smallint NOT NULL,
    -- CompensationState in crates/model/src/saga/state.rs.
    state       smallint NOT NULL DEFAULT 1,
    tries       integer NOT NULL DEFAULT 0,
    -- Tries before somebody asked for more.
    tries_before integer NOT NULL DEFAULT 0,
    -- The next try begins no earlier.
    not_before  timestamptz,
    reason      text,
    recorded_at timestamptz NOT NULL,
    started_at  timestamptz,
    ended_at    timestamptz,
    CHECK (state BETWEEN 1 AND 9)
) WITH (fillfactor = 70);
CREATE INDEX saga_record_saga ON saga_record (tenant, workflow_id, id);
CREATE INDEX saga_record_live ON saga_record (id) WHERE state IN (2, 3);

-- The jobs that undo a record. A job is a compensation if and only if it is here.
CREATE TABLE saga_try (
    job_id       text COLLATE "C" PRIMARY KEY,
    record_id    bigint NOT NULL REFERENCES saga_record ON DELETE CASCADE,
    try          integer NOT NULL,
    submitted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (record_id, try)
);

-- What a manager has to hear of, deleted in the transaction that acts on it.
CREATE TABLE saga_trigger (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant      text COLLATE "C" NOT NULL,
    workflow_id text COLLATE "C" NOT NULL,
    -- failed_fatal and so on, or late: a record came into a saga that is not open.
    trigger     text COLLATE "C" NOT NULL,
    job_id      text COLLATE "C",
    reason      text NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX saga_trigger_saga ON saga_trigger (tenant, workflow_id);
