-- Jobs counted by velocity rules that are marked strict. One row for each job within the
-- window of its counter, so a counter never has more rows than its rule's max_requests.
CREATE TABLE velocity_count (
    counter    text        NOT NULL,
    job_id     text        NOT NULL,
    counted_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (counter, job_id)
);
CREATE INDEX velocity_count_window ON velocity_count (counter, counted_at);
CREATE INDEX velocity_count_expired ON velocity_count (expires_at);

-- How many jobs each counter has in its window, this one included. A job counts once. One
-- that is over the limit takes no place in the window. With recording = false nothing changes.
-- Counters are taken in turns (64 of them, always in the same order), so that what is
-- counted and what is added are one step; every statement in here sees what the last turn
-- committed.
CREATE FUNCTION velocity_counts(
    counters text[], jobs text[], most bigint[], windows_ms bigint[], recording boolean
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    turn   integer;
    moment timestamptz;
    since  timestamptz;
    n      bigint;
    counts bigint[] := '{}';
BEGIN
    IF recording THEN
        FOR turn IN
            SELECT DISTINCT hashtext(c) & 63 AS t FROM unnest(counters) AS c ORDER BY t
        LOOP
            PERFORM pg_advisory_xact_lock(1986356329, turn);
        END LOOP;
    END IF;
    FOR i IN 1 .. coalesce(cardinality(counters), 0) LOOP
        moment := clock_timestamp();
        since := moment - windows_ms[i] * interval '1 millisecond';
        SELECT count(*) INTO n FROM velocity_count
            WHERE counter = counters[i] AND counted_at > since;
        IF NOT EXISTS (SELECT FROM velocity_count
                       WHERE counter = counters[i] AND job_id = jobs[i] AND counted_at > since) THEN
            IF recording AND n < most[i] THEN
                DELETE FROM velocity_count WHERE counter = counters[i] AND counted_at <= since;
                INSERT INTO velocity_count VALUES
                    (counters[i], jobs[i], moment, moment + windows_ms[i] * interval '1 millisecond')
                    ON CONFLICT (counter, job_id)
                    DO UPDATE SET counted_at = excluded.counted_at, expires_at = excluded.expires_at;
            END IF;
            n := n + 1;
        END IF;
        counts := counts || n;
    END LOOP;
    RETURN counts;
END $$;
