-- What a worker says of its run beside the result. Only jobs whose worker says something
-- have rows here: plain jobs pay nothing.

-- One row for each such job: how far its last run said it was, and what became of the
-- constraints it ran under.
CREATE TABLE job_report (
    job_id      text COLLATE "C" PRIMARY KEY,
    dispatch_id uuid NOT NULL,
    attempt     integer NOT NULL,
    percent     smallint,
    step        text,
    message     text,
    progress_at timestamptz,
    -- JSON; NULL: nothing was said of constraints.
    constraints bytea,
    -- Whether it is worth looking in the tables below.
    partials    boolean NOT NULL DEFAULT false,
    artifacts   boolean NOT NULL DEFAULT false
) WITH (fillfactor = 70);

-- The newest few; older ones go when newer ones come.
CREATE TABLE job_partial (
    job_id  text COLLATE "C" NOT NULL,
    number  bigint GENERATED ALWAYS AS IDENTITY,
    attempt integer NOT NULL,
    percent smallint,
    pointer text NOT NULL,
    -- In bytes; NULL: it could not be looked at.
    size    bigint,
    -- NULL: too large to be kept, or it could not be looked at.
    content bytea,
    at      timestamptz NOT NULL,
    PRIMARY KEY (job_id, number)
);

-- What runs left behind, each once. The content is where the pointer says.
CREATE TABLE job_artifact (
    job_id     text COLLATE "C" NOT NULL,
    pointer    text NOT NULL,
    number     bigint GENERATED ALWAYS AS IDENTITY,
    attempt    integer NOT NULL,
    name       text NOT NULL,
    media_type text NOT NULL,
    size       bigint,
    sha256     bytea,
    at         timestamptz NOT NULL,
    PRIMARY KEY (job_id, pointer)
);
