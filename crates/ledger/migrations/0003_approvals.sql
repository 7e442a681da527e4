-- Approvals, the audit trail, and policy bundles.

-- Which API key brought the job: nobody approves their own.
ALTER TABLE job_request ADD COLUMN submitted_by text COLLATE "C";

-- The content of the deciding rule, and what it bound the job to (JSON; NULL: nothing).
ALTER TABLE job_state ADD COLUMN rule_hash text COLLATE "C", ADD COLUMN constraints bytea;

-- A request for a human's word on one job. Bound to the job hash and to the content of
-- the rule that asked; when the policy asks anew for another reason, that is a new round.
CREATE TABLE approval (
    job_id          text COLLATE "C" NOT NULL REFERENCES job_request ON DELETE CASCADE,
    round           integer NOT NULL,
    shard           smallint NOT NULL,
    tenant          text COLLATE "C" NOT NULL,
    job_hash        bytea NOT NULL,
    rule_id         text COLLATE "C" NOT NULL,
    rule_hash       text COLLATE "C" NOT NULL,
    policy_snapshot text COLLATE "C" NOT NULL,
    reason          text NOT NULL,
    quorum          integer NOT NULL,
    -- Who may, as JSON.
    terms           bytea NOT NULL,
    -- 1 pending, 2 approved, 3 rejected, 4 expired, 5 denied by the policy,
    -- 6 superseded, 7 withdrawn, 8 released by the policy.
    status          smallint NOT NULL DEFAULT 1,
    requested_at    timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL,
    decided_at      timestamptz,
    decided_reason  text,
    approved_at     timestamptz,
    -- When the first run began on it. It is good for this job's runs and nothing else.
    used_at         timestamptz,
    PRIMARY KEY (job_id, round)
);
CREATE UNIQUE INDEX approval_pending ON approval (job_id) WHERE status = 1;
CREATE INDEX approval_expiry ON approval (shard, expires_at) WHERE status = 1;
CREATE INDEX approval_listing ON approval (tenant, requested_at);

CREATE TABLE approval_vote (
    job_id      text COLLATE "C" NOT NULL,
    round       integer NOT NULL,
    -- The person: the key's principal, or the key itself.
    voter       text COLLATE "C" NOT NULL,
    key_name    text COLLATE "C" NOT NULL,
    approve     boolean NOT NULL,
    reason      text NOT NULL,
    -- What the voter narrows the job to, as JSON.
    constraints bytea,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job_id, round, voter),
    FOREIGN KEY (job_id, round) REFERENCES approval ON DELETE CASCADE
);

-- Who did what, and when. Only ever appended to.
CREATE TABLE audit_log (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind   text COLLATE "C" NOT NULL,
    -- NULL: of no tenant, the policy for instance.
    tenant text COLLATE "C",
    actor  text COLLATE "C" NOT NULL,
    job_id text COLLATE "C",
    -- JSON.
    detail bytea NOT NULL
);
CREATE INDEX audit_log_job ON audit_log (job_id, id) WHERE job_id IS NOT NULL;

CREATE TABLE policy_bundle (
    name         text COLLATE "C" NOT NULL,
    version      bigint NOT NULL,
    position     integer NOT NULL,
    content      bytea NOT NULL,
    sha256       text COLLATE "C" NOT NULL,
    signature    bytea,
    key_id       text COLLATE "C",
    note         text NOT NULL,
    published_by text COLLATE "C" NOT NULL,
    published_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    active       boolean NOT NULL,
    PRIMARY KEY (name, version)
);
CREATE UNIQUE INDEX policy_bundle_active ON policy_bundle (name) WHERE active;
