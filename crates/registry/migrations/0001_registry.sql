-- One schema for SQLite and, with BYTEA in place of BLOB, for PostgreSQL.
--
-- Keys are BIGINT PRIMARY KEY, not SQLite's INTEGER PRIMARY KEY: rows then lie in the order of enrolment, as in
-- PostgreSQL's heap, instead of at random places given by sparse device ids, so pages fill and bulk loads append.
--
-- u64 values (device_id) are stored bit-cast to BIGINT; times are seconds since 1970-01-01 UTC.

CREATE TABLE registry (
    singleton   SMALLINT PRIMARY KEY CHECK (singleton = 1),
    registry_id BLOB     NOT NULL,                        -- 16 random bytes: salt of the sealing key
    key_check   BLOB     NOT NULL,                        -- a known text, sealed: tells a wrong master key
    revision    BIGINT   NOT NULL CHECK (revision >= 0)   -- of the newest change to any device
);

-- Small rows, because marks move often.
CREATE TABLE device (
    device_id      BIGINT   PRIMARY KEY,
    name           TEXT     NOT NULL,
    mode           SMALLINT NOT NULL CHECK (mode IN (1, 2)),      -- 1 pool, 2 key
    suite          SMALLINT NOT NULL,
    status         SMALLINT NOT NULL CHECK (status IN (1, 2)),    -- 1 active, 2 revoked
    enrolled_at_s  BIGINT   NOT NULL,
    revoked_at_s   BIGINT,
    revoked_reason TEXT,
    first_idx      BIGINT   NOT NULL CHECK (first_idx BETWEEN 0 AND 4294967295),
    rows_total     BIGINT   NOT NULL CHECK (rows_total BETWEEN 0 AND 4294967295),
    idx_floor      BIGINT   NOT NULL CHECK (idx_floor BETWEEN 0 AND 4294967295),
    floor_version  BIGINT   NOT NULL,                             -- counts every move of idx_floor
    epoch          BIGINT   NOT NULL CHECK (epoch BETWEEN 0 AND 4294967295),
    revision       BIGINT   NOT NULL,
    puf_profile    TEXT     NOT NULL,
    mac            BLOB     NOT NULL,                             -- over all other columns, under the master key
    CHECK ((status = 2) = (revoked_at_s IS NOT NULL)),
    CHECK ((status = 2) = (revoked_reason IS NOT NULL))
);

CREATE UNIQUE INDEX device_by_revision ON device (revision);

-- Big rows, written once.
CREATE TABLE credential (
    device_id BIGINT PRIMARY KEY REFERENCES device (device_id),
    sealed    BLOB   NOT NULL
);
