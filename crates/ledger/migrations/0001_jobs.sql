-- What never changes of a job is apart from what does. The state row is narrow and its
-- pages are left half empty, so that the update to SCHEDULED stays on its page (HOT)
-- and touches no index; only the flip of "open" at the end does.

CREATE TABLE job_request (
    job_id          text COLLATE "C" PRIMARY KEY,
    tenant          text COLLATE "C" NOT NULL,
    topic           text COLLATE "C" NOT NULL,
    priority        smallint NOT NULL,
    shard           smallint NOT NULL,
    idempotency_key text COLLATE "C",
    job_hash        bytea NOT NULL,
    -- The request as JSON, and its input as it came. Never jsonb: a \u0000 in one
    -- payload would fail a whole batch for ever.
    spec            bytea NOT NULL,
    payload         bytea,
    trace_id        text COLLATE "C" NOT NULL,
    traceparent     text COLLATE "C" NOT NULL,
    max_attempts    smallint,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX job_request_idempotency
    ON job_request (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
-- Ties in time are sorted by id when they are read; the id would double the index.
CREATE INDEX job_request_listing ON job_request (tenant, created_at);

CREATE TABLE job_state (
    job_id          text COLLATE "C" PRIMARY KEY,
    shard           smallint NOT NULL,
    open            boolean NOT NULL DEFAULT true,
    state           smallint NOT NULL DEFAULT 1,
    -- Runs begun, the current one included.
    attempt         integer NOT NULL DEFAULT 0,
    -- The leadership term of the last leader that wrote here.
    epoch           bigint NOT NULL DEFAULT 0,
    due_at          timestamptz,
    deadline_at     timestamptz,
    -- Not to be tried before this time (a retry's backoff).
    not_before      timestamptz,
    dispatch_id     uuid,
    worker_id       text COLLATE "C",
    incarnation     text COLLATE "C",
    decision        smallint,
    rule_id         text COLLATE "C",
    policy_snapshot text COLLATE "C",
    decision_reason text,
    decided_at      timestamptz,
    held_at         timestamptz,
    scheduled_at    timestamptz,
    dispatched_at   timestamptz,
    running_at      timestamptz,
    finished_at     timestamptz,
    reason_code     text COLLATE "C",
    reason          text,
    result_ptr      text COLLATE "C",
    result_missing  boolean NOT NULL DEFAULT false,
    result          bytea
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX job_state_open ON job_state (shard, job_id) WHERE open;

-- Delayed jobs only; a row is claimed by deleting it.
CREATE TABLE job_due (
    job_id text COLLATE "C" PRIMARY KEY,
    shard  smallint NOT NULL,
    due_at timestamptz NOT NULL
);
CREATE INDEX job_due_order ON job_due (shard, due_at);

-- Runs that ended without ending the job. The current or last run is in job_state.
CREATE TABLE job_attempt (
    job_id        text COLLATE "C" NOT NULL,
    dispatch_id   uuid NOT NULL,
    attempt       integer NOT NULL,
    worker_id     text COLLATE "C" NOT NULL,
    incarnation   text COLLATE "C" NOT NULL,
    epoch         bigint NOT NULL,
    scheduled_at  timestamptz,
    dispatched_at timestamptz,
    running_at    timestamptz,
    ended_at      timestamptz NOT NULL,
    outcome       text COLLATE "C" NOT NULL,
    reason        text NOT NULL,
    PRIMARY KEY (job_id, dispatch_id)
);

-- Results that came from the wrong worker, for a past attempt, or for a job that had
-- already ended otherwise: kept for whoever asks, without any effect.
CREATE TABLE job_stray_result (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id      text COLLATE "C" NOT NULL,
    dispatch_id text COLLATE "C" NOT NULL,
    worker_id   text COLLATE "C" NOT NULL,
    status      text COLLATE "C" NOT NULL,
    why         text NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX job_stray_result_job ON job_stray_result (job_id);

CREATE TABLE dead_letter (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id      text COLLATE "C",
    tenant      text COLLATE "C",
    topic       text COLLATE "C",
    reason_code text COLLATE "C" NOT NULL,
    reason      text NOT NULL,
    last_state  text COLLATE "C",
    attempts    integer NOT NULL DEFAULT 0,
    -- For a bus message that could not be read.
    subject     text,
    packet      bytea,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX dead_letter_listing ON dead_letter (tenant, id);

-- What others must hear of, one row per transaction, written with the change itself.
-- The order of reading is (xid, seq): a row is read only when no older transaction is
-- still under way, so a slow writer's row is never jumped over.
CREATE TABLE change_log (
    xid     bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint),
    seq     bigint GENERATED ALWAYS AS IDENTITY,
    shard   smallint NOT NULL,
    job_ids text[] COLLATE "C" NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (xid, seq)
);
CREATE TABLE change_cursor (
    shard smallint PRIMARY KEY,
    xid   bigint NOT NULL,
    seq   bigint NOT NULL
);

-- Whose writes count. Every leader transaction share-locks its row here; the renewal
-- is apart, so that the two never wait for each other.
CREATE TABLE leadership (
    shard  smallint PRIMARY KEY,
    epoch  bigint NOT NULL,
    leader text NOT NULL,
    since  timestamptz NOT NULL
);
CREATE TABLE leader_renewal (
    shard      smallint PRIMARY KEY,
    epoch      bigint NOT NULL,
    renewed_at timestamptz NOT NULL
);

CREATE TABLE setting (
    name  text PRIMARY KEY,
    value text NOT NULL
);
