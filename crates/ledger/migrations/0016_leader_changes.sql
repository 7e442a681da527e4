-- How terms began and ended, and who stands by.

-- A leader that gives its lease back says so, and why; one that is gone does not.
ALTER TABLE leader_renewal ADD COLUMN released_at timestamptz;
ALTER TABLE leader_renewal ADD COLUMN released_why text;
-- Somebody asked the leader of this term to hand over.
ALTER TABLE leader_renewal ADD COLUMN step_down boolean NOT NULL DEFAULT false;

-- One row for every term, the latest of them: what ended the one before, and for how long
-- nobody led.
CREATE TABLE leader_change (
    shard   smallint NOT NULL,
    epoch   bigint NOT NULL,
    leader  text NOT NULL,
    backend text NOT NULL,
    cause   text NOT NULL,
    gap_ms  bigint,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (shard, epoch)
);

-- The replicas that lead or would, each with when it was last here and whether it reaches the
-- bus.
CREATE TABLE leader_candidate (
    shard    smallint NOT NULL,
    instance text NOT NULL,
    seen_at  timestamptz NOT NULL,
    bus_ok   boolean NOT NULL,
    PRIMARY KEY (shard, instance)
);
