-- A dead letter keeps the request itself, so that it can be tried again after the job
-- was removed, and says what became of it.
ALTER TABLE dead_letter
    ADD COLUMN spec       bytea,
    ADD COLUMN payload    bytea,
    ADD COLUMN trace_id   text COLLATE "C",
    -- The job it was tried again as.
    ADD COLUMN retried_as text COLLATE "C",
    ADD COLUMN retried_at timestamptz;
CREATE INDEX dead_letter_job ON dead_letter (job_id) WHERE job_id IS NOT NULL;

-- Jobs that are another's second chance; outlives the letter it was made from.
CREATE TABLE job_retry (
    job_id    text COLLATE "C" PRIMARY KEY,
    retry_of  text COLLATE "C" NOT NULL,
    letter_id bigint NOT NULL,
    who       text NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX job_retry_of ON job_retry (retry_of);

-- Tasks that used up their tries, for manual inspection.
CREATE VIEW failed_tasks AS
SELECT d.id, d.job_id AS task_id, d.tenant, d.payload, s.due_at, d.attempts, d.reason_code,
       d.reason AS error, d.retried_as, d.created_at AS failed_at
FROM dead_letter d LEFT JOIN job_state s ON s.job_id = d.job_id
WHERE d.topic = 'job.default';
