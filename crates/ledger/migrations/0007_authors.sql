-- Who a job comes from, by the credential and not by its own word.

ALTER TABLE job_request
    -- The principal of the key that brought it; NULL: from before it was kept.
    ADD COLUMN submitted_principal text COLLATE "C",
    -- Of a retry: the names of everybody who brought the request before, keys and
    -- principals. None of them approves it.
    ADD COLUMN authors text[] COLLATE "C";

-- For counting open jobs by tenant without looking into job_request. No index: rows are
-- found by job_state_open.
ALTER TABLE job_state ADD COLUMN tenant text COLLATE "C";

ALTER TABLE dead_letter
    ADD COLUMN submitted_principal text COLLATE "C",
    ADD COLUMN authors text[] COLLATE "C";

-- What was retried before: every earlier submitter that is still known.
WITH RECURSIVE chain AS (
    SELECT job_id, retry_of FROM job_retry
    UNION
    SELECT c.job_id, t.retry_of FROM chain c JOIN job_retry t ON t.job_id = c.retry_of
), known AS (
    SELECT c.job_id, array_agg(DISTINCT r.submitted_by) AS authors
    FROM chain c JOIN job_request r ON r.job_id = c.retry_of
    WHERE r.submitted_by IS NOT NULL GROUP BY c.job_id
)
UPDATE job_request r SET authors = k.authors FROM known k WHERE r.job_id = k.job_id;

UPDATE dead_letter d
SET authors = array_remove(coalesce(r.authors, '{}') || r.submitted_by, NULL)
FROM job_request r WHERE r.job_id = d.job_id;

UPDATE job_state s SET tenant = r.tenant
FROM job_request r WHERE s.open AND r.job_id = s.job_id;

-- The last approved request of a kind, for whoever is asked about the next.
CREATE INDEX approval_kind ON approval (tenant, rule_id, approved_at) WHERE status = 2;
