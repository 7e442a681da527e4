-- How runs ended, as a number (RunEnd in crates/model/src/run_end.rs): the reason code may
-- be the worker's own. NULL where a version from before it was kept wrote the end.

-- Of the last run that may have begun and has ended.
ALTER TABLE job_state ADD COLUMN run_end smallint;
ALTER TABLE job_attempt ADD COLUMN run_end smallint;
