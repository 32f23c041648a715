-- Which storage the registry was served from last; 'copy' in every copy, NULL until the first gateway registers. Where it is
-- another one than now, what was leased since is not known here.
ALTER TABLE registry ADD COLUMN storage TEXT;
-- Raised with each return to an earlier state; the high half of each fence.
ALTER TABLE registry ADD COLUMN incarnation BIGINT NOT NULL DEFAULT 0;
