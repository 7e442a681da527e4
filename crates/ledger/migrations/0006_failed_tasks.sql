-- Tasks that used up their tries, for manual inspection: what came in by POST /tasks,
-- whatever topic tasks are given to there. Such a job brings a retry plan of its own, and
-- no other way in takes one. The plan is looked for as JSON, because a job may carry such
-- words deeper inside. Postgres cannot take a string with \u0000 apart, and one such
-- request would make the whole view fail, so it is looked past.
CREATE OR REPLACE VIEW failed_tasks AS
SELECT d.id, d.job_id AS task_id, d.tenant, d.payload, s.due_at, d.attempts, d.reason_code,
       d.reason AS error, d.retried_as, d.created_at AS failed_at
FROM dead_letter d LEFT JOIN job_state s ON s.job_id = d.job_id
WHERE CASE
    WHEN d.spec IS NULL OR position('"retry":{'::bytea IN d.spec) = 0 THEN false
    ELSE (replace(convert_from(d.spec, 'UTF8'), '\u0000', '\ufffd')::json -> 'retry') IS NOT NULL
END;
