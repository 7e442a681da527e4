-- Dead letters that nobody has tried again are counted every few seconds, by reason and
-- topic. This index holds all that the count needs.
CREATE INDEX dead_letter_open ON dead_letter (reason_code, topic, created_at)
    WHERE retried_as IS NULL;
