-- The second door. Only jobs of an installation whose output policy is on have rows here:
-- no row means that nothing looked at the output.

-- The verdict on a job's output, and what became of it.
CREATE TABLE job_output (
    job_id          text COLLATE "C" PRIMARY KEY,
    tenant_id       text COLLATE "C" NOT NULL,
    -- OutputStatus in crates/model/src/output.rs.
    status          smallint NOT NULL CHECK (status BETWEEN 0 AND 6),
    -- OutputDecision; NULL while it is held.
    decision        smallint,
    rule_id         text COLLATE "C",
    reason          text,
    severity        text COLLATE "C",
    -- OutputPhase: 1 before the end was committed, 2 after it.
    phase           smallint NOT NULL,
    policy_snapshot text COLLATE "C",
    -- Of the output as the worker sent it.
    sha256          bytea,
    -- JSON, as `airlock output scan` prints them; NULL: none.
    findings        bytea,
    decided_at      timestamptz,
    held_since      timestamptz,
    -- The original of what is held, quarantined or redacted; removed after
    -- retention.evidence.
    original        bytea,
    -- The original with its findings masked, where that is possible.
    redacted        bytea,
    evidence_until  timestamptz,
    -- Whoever released or rejected it.
    reviewed_by     text,
    review_mode     text COLLATE "C" CHECK (review_mode IN ('whole', 'redacted')),
    review_reason   text,
    reviewed_at     timestamptz
) WITH (fillfactor = 90);
CREATE INDEX job_output_quarantine ON job_output (decided_at DESC, job_id) WHERE status IN (4, 5, 6);
CREATE INDEX job_output_evidence ON job_output (evidence_until) WHERE evidence_until IS NOT NULL;

-- Scans of content that are owed. A row goes with its verdict.
CREATE TABLE output_scan (
    job_id     text COLLATE "C" PRIMARY KEY,
    shard      smallint NOT NULL,
    -- What is to be judged: a verdict on other content counts for nothing.
    sha256     bytea NOT NULL,
    -- Whether the job waits for it.
    held       boolean NOT NULL,
    owed_since timestamptz NOT NULL,
    not_before timestamptz NOT NULL,
    tries      integer NOT NULL DEFAULT 0
);
CREATE INDEX output_scan_order ON output_scan (shard, not_before);

-- The output policy as the leader last heard it from a scanner: one row.
CREATE TABLE output_policy (
    singleton    boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    snapshot     text COLLATE "C" NOT NULL,
    -- ClosedRules in crates/model/src/output.rs, as JSON.
    closed_rules bytea NOT NULL,
    fail_closed  boolean NOT NULL,
    at           timestamptz NOT NULL
);

-- Stored results against today's policy, in order of their end.
CREATE TABLE output_rescan (
    rescan_id    uuid PRIMARY KEY,
    tenant_id    text COLLATE "C",
    topic        text COLLATE "C",
    since        timestamptz NOT NULL,
    -- Jobs that end later were judged by today's policy already.
    up_to        timestamptz NOT NULL,
    dry_run      boolean NOT NULL,
    requested_by text NOT NULL,
    -- running, done, failed
    state        text COLLATE "C" NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'failed')),
    after_at     timestamptz,
    after_job    text COLLATE "C",
    total        bigint NOT NULL DEFAULT 0,
    scanned      bigint NOT NULL DEFAULT 0,
    allowed      bigint NOT NULL DEFAULT 0,
    quarantined  bigint NOT NULL DEFAULT 0,
    redacted     bigint NOT NULL DEFAULT 0,
    failed       bigint NOT NULL DEFAULT 0,
    error        text,
    created_at   timestamptz NOT NULL,
    ended_at     timestamptz
);
CREATE INDEX output_rescan_running ON output_rescan (created_at) WHERE state = 'running';

-- NULL: nothing looked at it. 1: allowed. 2: withheld. 3: its verdict is owed, and nobody
-- reads it before.
ALTER TABLE job_partial ADD COLUMN output smallint;
ALTER TABLE job_artifact ADD COLUMN output smallint;
CREATE INDEX job_partial_owed ON job_partial (job_id) WHERE output = 3;
CREATE INDEX job_artifact_owed ON job_artifact (job_id) WHERE output = 3;
