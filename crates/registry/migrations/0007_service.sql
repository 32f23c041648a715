-- Running as a service: who may ask for what, what happened, which gateways there are, whose signatures are believed.

-- What happened, and who had it done. Numbers follow each other without gaps; each code covers the one before.
CREATE TABLE journal (
    number     BIGINT PRIMARY KEY,
    at_ms      BIGINT NOT NULL,
    kind       TEXT   NOT NULL,
    gateway_id BIGINT,
    device_id  BIGINT,
    detail     TEXT   NOT NULL,
    who        TEXT,                                      -- of what somebody had done by a command ..
    who_role   BIGINT,
    origin     TEXT,                                      -- .. from where
    reason     TEXT,
    refused    BIGINT NOT NULL,                           -- 1: it was asked for, and refused
    mac        BLOB   NOT NULL                            -- over all other columns and the code of the number before, under the master key
);

CREATE INDEX journal_by_device ON journal (device_id, number) WHERE device_id IS NOT NULL;
CREATE INDEX journal_by_who ON journal (who, number) WHERE who IS NOT NULL;

-- Who may use the API.
CREATE TABLE api_user (
    name         TEXT   PRIMARY KEY,
    role         BIGINT NOT NULL,                         -- 1 viewer, 2 operator, 3 admin
    token_hash   BLOB,                                    -- SHA-256; NULL: by a certificate only
    created_at_s BIGINT NOT NULL,
    expires_at_s BIGINT,
    mac          BLOB   NOT NULL                          -- over all other columns, under the master key
);

CREATE UNIQUE INDEX api_user_by_token ON api_user (token_hash);

-- A browser that has logged in.
CREATE TABLE api_session (
    session_hash BLOB   PRIMARY KEY,                      -- SHA-256 of its cookie
    user_name    TEXT   NOT NULL,
    expires_at_s BIGINT NOT NULL,
    mac          BLOB   NOT NULL                          -- over all other columns, under the master key
);

-- Answers to what was asked under a key, for who asks again.
CREATE TABLE api_answer (
    user_name TEXT   NOT NULL,
    key       TEXT   NOT NULL,
    request   BLOB   NOT NULL,                            -- SHA-256 of it
    status    BIGINT,                                     -- NULL: under way, or its controller is gone
    body      BLOB,
    at_s      BIGINT NOT NULL,
    PRIMARY KEY (user_name, key)
);

CREATE INDEX api_answer_by_time ON api_answer (at_s);

-- A gateway as people know it. A number that was retired is never used again.
CREATE TABLE gateway_book (
    gateway_id     BIGINT PRIMARY KEY CHECK (gateway_id BETWEEN 0 AND 4294967295),
    name           TEXT   NOT NULL,
    created_at_s   BIGINT NOT NULL,
    retired_at_s   BIGINT,
    retired_reason TEXT,
    mac            BLOB   NOT NULL                        -- over all other columns, under the master key
);

-- How it stood when it said so last, for people only.
CREATE TABLE gateway_state (
    gateway_id BIGINT PRIMARY KEY CHECK (gateway_id BETWEEN 0 AND 4294967295),
    at_ms      BIGINT NOT NULL,
    controller TEXT   NOT NULL,
    body       TEXT   NOT NULL                            -- JSON
);

-- Devices that somebody has put into quarantine: what they prove by themselves lets them out of it no more.
CREATE TABLE quarantine_order (
    device_id BIGINT PRIMARY KEY,
    at_s      BIGINT NOT NULL,
    mac       BLOB   NOT NULL                             -- over all other columns, under the master key
);

-- Whose broadcast messages are believed.
CREATE TABLE signer (
    signer_id    BLOB   PRIMARY KEY,
    name         TEXT   NOT NULL,
    scheme       TEXT   NOT NULL,
    public_key   BLOB   NOT NULL,
    added_at_s   BIGINT NOT NULL,
    revoked_at_s BIGINT,
    mac          BLOB   NOT NULL                          -- over all other columns, under the master key
);
