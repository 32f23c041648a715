-- How a move ended, and what happened by kind and by gateway.

-- 1: the registry that this one was moved to has been there: nothing is put in its place by moving this one again.
ALTER TABLE registry ADD COLUMN move_ended BIGINT NOT NULL DEFAULT 0;

-- Questions about one of few among very many.
CREATE INDEX journal_by_kind ON journal (kind, number);
CREATE INDEX journal_by_gateway ON journal (gateway_id, number) WHERE gateway_id IS NOT NULL;
