-- What devices are to run, what they have proven, and which of them are shut out until they prove it (LAP/1 3.2, 3.3).

-- Set and lifted again, as revocation is not. Covered by the row's code where it is set.
ALTER TABLE device ADD COLUMN quarantined_at_s BIGINT;
ALTER TABLE device ADD COLUMN quarantined_reason TEXT;

-- Of the newest change to any prover or group.
ALTER TABLE registry ADD COLUMN attest_revision BIGINT NOT NULL DEFAULT 0;

CREATE TABLE attest_group (
    name             TEXT     PRIMARY KEY,
    every_s          BIGINT   NOT NULL,
    jitter_s         BIGINT   NOT NULL,
    answer_ms        BIGINT   NOT NULL,
    silent           BIGINT   NOT NULL,                   -- so many silences ..
    of_rounds        BIGINT   NOT NULL,                   -- .. in so many rounds put a device into quarantine
    late_is_silent   SMALLINT NOT NULL,
    reopen           SMALLINT NOT NULL,                   -- 1 automatic, 2 by command
    reference        BLOB,                                -- an encoded configuration; none yet
    roll_out         BLOB,                                -- another one, valid beside it ..
    roll_out_until_s BIGINT,                              -- .. until then
    rounds_wanted    BIGINT   NOT NULL,                   -- counts rounds that were asked for by command
    revision         BIGINT   NOT NULL,
    mac              BLOB     NOT NULL                    -- over all other columns, under the master key
);

-- A device as a prover. The row of one that is none any more stays, without its key, for the gateways to learn of it.
CREATE TABLE prover (
    device_id       BIGINT   PRIMARY KEY,
    group_name      TEXT     NOT NULL,
    sealed          BLOB,                                 -- the attestation key; NULL once removed
    protection      SMALLINT NOT NULL,                    -- 1 software, 2 TPM
    binding         BLOB,                                 -- what ties the key to one TPM, as JSON
    overlay         BLOB,                                 -- the device's own entries, as an encoded configuration
    home_gateway    BIGINT,                               -- which gateway asks it first, and where it is
    home_address    BLOB,                                 -- 4 or 16 bytes
    port            BIGINT   NOT NULL,
    enrolled_at_s   BIGINT   NOT NULL,
    enrolled_period BIGINT   NOT NULL,                    -- u64, bit-cast
    revision        BIGINT   NOT NULL,
    removed         SMALLINT NOT NULL,
    mac             BLOB     NOT NULL                     -- over all other columns, under the master key
);

CREATE INDEX prover_by_revision ON prover (revision);

CREATE TABLE period (
    number     BIGINT PRIMARY KEY CHECK (number >= 1),
    sealed     BLOB   NOT NULL,                           -- the salt, which nobody may know before the period begins
    drawn_at_s BIGINT NOT NULL,
    begun_at_s BIGINT,
    mac        BLOB   NOT NULL                            -- over all other columns, under the master key
);

-- The first number that no process of the gateway has been given for its rounds.
CREATE TABLE round_number (
    gateway_id BIGINT PRIMARY KEY CHECK (gateway_id BETWEEN 0 AND 4294967295),
    next       BIGINT NOT NULL,
    mac        BLOB   NOT NULL                            -- over all other columns, under the master key
);

-- Rounds that are over; the newest of each gateway.
CREATE TABLE attest_round (
    gateway_id      BIGINT NOT NULL,
    number          BIGINT NOT NULL,
    group_name      TEXT   NOT NULL,
    period          BIGINT NOT NULL,
    started_at_s    BIGINT NOT NULL,
    ended_at_s      BIGINT NOT NULL,
    asked           BIGINT NOT NULL,
    ok              BIGINT NOT NULL,
    late            BIGINT NOT NULL,
    silent          BIGINT NOT NULL,
    last_verdict_ms BIGINT NOT NULL,
    mac             BLOB   NOT NULL,                      -- over all other columns, under the master key
    PRIMARY KEY (gateway_id, number)
);

-- How a prover stands, as of its newest change.
CREATE TABLE appraisal (
    device_id     BIGINT   PRIMARY KEY,
    gateway_id    BIGINT   NOT NULL,
    address       BLOB,                                   -- 4 or 16 bytes
    state         SMALLINT NOT NULL,                      -- 1 ok, 2 late, 3 silent, 4 quarantined
    since_s       BIGINT   NOT NULL,
    since_round   BIGINT   NOT NULL,
    configuration SMALLINT NOT NULL,                      -- 1 current, 2 alternate
    silences      BLOB,                                   -- numbers of the gateway's rounds, u32 each; NULL: none
    asked         BIGINT   NOT NULL,
    mac           BLOB     NOT NULL                       -- over all other columns, under the master key
);

-- What a device has sent of its logs: the newest document and the one before it.
CREATE TABLE evidence (
    device_id BIGINT NOT NULL,
    number    BIGINT NOT NULL,                            -- counts the device's documents
    at_s      BIGINT NOT NULL,
    sealed    BLOB   NOT NULL,                            -- bound to all other columns
    PRIMARY KEY (device_id, number)
);
