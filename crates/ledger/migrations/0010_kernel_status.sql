-- What each safety kernel has loaded, as it says itself every few seconds.
CREATE TABLE kernel_status (
    instance   text        PRIMARY KEY,
    -- The policy in force; empty: none.
    snapshot   text        NOT NULL,
    -- Which change of the bundles it has read and loaded, or refused.
    generation bigint      NOT NULL,
    files      text        NOT NULL,
    -- Why the newest sources are not in force; null: they are.
    refused    text,
    loaded_at  timestamptz,
    refused_at timestamptz,
    -- Why it counts velocity alone; null: with the others.
    alone      text,
    seen_at    timestamptz NOT NULL
);
