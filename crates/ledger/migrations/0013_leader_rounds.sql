-- When the leader last carried out a round, for services that cannot ask it: holding the
-- lease is not yet doing the work. NULL: it has not said so in this term.
ALTER TABLE leader_renewal ADD COLUMN round_at timestamptz;
