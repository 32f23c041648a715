-- The schema of a registry, for SQLite and, with BYTEA in place of BLOB, for PostgreSQL.
--
-- Keys are BIGINT PRIMARY KEY, not SQLite's INTEGER PRIMARY KEY. So SQLite stores records in the order of enrollment, as
-- PostgreSQL does. With INTEGER PRIMARY KEY, sparse device ids would cause random positions and half-empty pages.
--
-- u64 values (device_id) are stored bit-cast to BIGINT. Times with the suffix _s are seconds since 1970-01-01 UTC, times with
-- the suffix _ms are milliseconds. A column `tag` is a message authentication code over all other columns of its record, under
-- the master key. A column `sealed` is encrypted and authenticated under the master key, and bound to the key of its record.

-- ---- The registry itself: one record ----

CREATE TABLE registry (
    singleton       SMALLINT PRIMARY KEY CHECK (singleton = 1),
    registry_id     BLOB     NOT NULL,                        -- 16 random bytes: salt of the sealing key
    key_check       BLOB     NOT NULL,                        -- a known text, sealed: detects a wrong master key
    revision        BIGINT   NOT NULL CHECK (revision >= 0),  -- revision of the newest change to a device
    attest_revision BIGINT   NOT NULL DEFAULT 0,              -- revision of the newest change to a prover or group
    moved_to        TEXT,                                     -- address of the registry that replaces this one
    move_completed  BIGINT   NOT NULL DEFAULT 0,              -- 1: the new registry is complete; a repeated move is refused
    storage         TEXT,                                     -- storage of the last registration; 'copy' in every copy
    incarnation     BIGINT   NOT NULL DEFAULT 0               -- increased after each restore; upper half of each fencing token
);

-- ---- Devices ----

-- Short records, because idx_floor changes often. A revocation is permanent; a quarantine can end.
CREATE TABLE device (
    device_id          BIGINT   PRIMARY KEY,
    name               TEXT     NOT NULL,
    mode               SMALLINT NOT NULL CHECK (mode IN (1, 2)),      -- 1 pool, 2 key
    suite              SMALLINT NOT NULL,
    status             SMALLINT NOT NULL CHECK (status IN (1, 2)),    -- 1 active, 2 revoked
    enrolled_at_s      BIGINT   NOT NULL,
    revoked_at_s       BIGINT,
    revoked_reason     TEXT,
    first_idx          BIGINT   NOT NULL CHECK (first_idx BETWEEN 0 AND 4294967295),
    rows_total         BIGINT   NOT NULL CHECK (rows_total BETWEEN 0 AND 4294967295),
    idx_floor          BIGINT   NOT NULL CHECK (idx_floor BETWEEN 0 AND 4294967295), -- from this row on, no row is leased or was used
    floor_version      BIGINT   NOT NULL,                             -- counts every change of idx_floor
    epoch              BIGINT   NOT NULL CHECK (epoch BETWEEN 0 AND 4294967295),
    revision           BIGINT   NOT NULL,
    puf_profile        TEXT     NOT NULL,
    tag                BLOB     NOT NULL,
    quarantined_at_s   BIGINT,
    quarantined_reason TEXT,
    CHECK ((status = 2) = (revoked_at_s IS NOT NULL)),
    CHECK ((status = 2) = (revoked_reason IS NOT NULL))
);

CREATE UNIQUE INDEX device_by_revision ON device (revision);

-- Indexes for lists of a million devices: by prefix of the name, of revoked devices, and of devices in quarantine.
CREATE INDEX device_by_name ON device (name, device_id);
CREATE INDEX device_revoked ON device (device_id) WHERE status = 2;
CREATE INDEX device_quarantined ON device (device_id) WHERE quarantined_at_s IS NOT NULL;

-- Long records, which are written once.
CREATE TABLE credential (
    device_id BIGINT PRIMARY KEY REFERENCES device (device_id),
    sealed    BLOB   NOT NULL
);

-- Devices that an operator has put into quarantine. A proof does not release these devices.
CREATE TABLE manual_quarantine (
    device_id BIGINT PRIMARY KEY,
    at_s      BIGINT NOT NULL,
    tag       BLOB   NOT NULL
);

-- The bands of a device's PUF, sealed. A registry that imports the device computes its own hashes from these bands.
CREATE TABLE fingerprint (
    device_id BIGINT PRIMARY KEY,
    sealed    BLOB   NOT NULL
);

-- A keyed hash of each band, to find other devices with the same PUF. Computing or inverting a hash needs the master key.
CREATE TABLE fingerprint_band (
    hash      BIGINT NOT NULL,
    device_id BIGINT NOT NULL,
    PRIMARY KEY (hash, device_id)
);

-- ---- Gateways and leases: rows are leased to gateways in ranges ----

-- A gateway's registration. The fencing token counts registrations: a request with an older token is refused. A process
-- that registers again keeps its token, unless another process has registered since. A request is refused if it carries a
-- lower number of abandoned requests than this record.
CREATE TABLE gateway (
    gateway_id         BIGINT PRIMARY KEY CHECK (gateway_id BETWEEN 0 AND 4294967295),
    fencing_token      BIGINT NOT NULL CHECK (fencing_token >= 1),
    registered_at_s    BIGINT NOT NULL,
    process_id         BLOB   NOT NULL, -- 16 random bytes; 16 zeros if none was sent
    abandoned_requests BIGINT NOT NULL, -- highest number of abandoned requests that a request has carried
    tag                BLOB   NOT NULL
);

-- The rows of a device that a gateway holds. In pool mode the record remains, with an empty range, after the gateway has
-- returned all rows. end_idx is the number after the highest row that the gateway may have used; a device answers no lower
-- row at that gateway (LAP/1 1.5).
CREATE TABLE lease (
    gateway_id    BIGINT NOT NULL,
    device_id     BIGINT NOT NULL,
    fencing_token BIGINT NOT NULL CHECK (fencing_token >= 1),         -- of the process that uses the rows below the mark
    epoch         BIGINT NOT NULL CHECK (epoch BETWEEN 0 AND 4294967295),
    first_idx     BIGINT NOT NULL CHECK (first_idx BETWEEN 0 AND 4294967295),
    end_idx       BIGINT NOT NULL CHECK (end_idx BETWEEN 0 AND 4294967295),
    mark          BIGINT NOT NULL CHECK (mark BETWEEN 0 AND 4294967295),
    tag           BLOB   NOT NULL,
    PRIMARY KEY (gateway_id, device_id),
    CHECK (first_idx <= mark AND mark <= end_idx)
);

CREATE INDEX lease_by_device ON lease (device_id);

-- Rows below idx_floor that were returned unused and can be leased again.
CREATE TABLE unleased_range (
    device_id BIGINT NOT NULL,
    epoch     BIGINT NOT NULL CHECK (epoch BETWEEN 0 AND 4294967295),
    first_idx BIGINT NOT NULL CHECK (first_idx BETWEEN 0 AND 4294967295),
    end_idx   BIGINT NOT NULL CHECK (end_idx BETWEEN 0 AND 4294967295),
    tag       BLOB   NOT NULL,
    PRIMARY KEY (device_id, first_idx),
    CHECK (first_idx < end_idx)
);

-- The gateway at which a device opened its newest session, for devices that were leased to more than one gateway
-- (LAP/1 1.4.11).
CREATE TABLE newest_session (
    device_id  BIGINT PRIMARY KEY,
    gateway_id BIGINT NOT NULL CHECK (gateway_id BETWEEN 0 AND 4294967295),
    boot_id    BLOB   NOT NULL,                           -- boot of the controller's machine at which started_ns begins
    started_ns BIGINT NOT NULL,                           -- boot-time clock, ns; negative: before this boot
    revision   BIGINT NOT NULL,                           -- revision under which the change feed reports this record
    tag        BLOB   NOT NULL
);

CREATE INDEX newest_session_by_revision ON newest_session (revision);

-- ---- Tickets: requests of devices to the controller, sealed end to end (LAP/1 1.7) ----

-- The number of the last ticket that changed the device's credentials. A new enrollment of the device deletes the record.
CREATE TABLE ticket (
    device_id BIGINT PRIMARY KEY,
    number    BIGINT NOT NULL CHECK (number >= 1),
    tag       BLOB   NOT NULL
);

-- Pairs of devices that may communicate. The lower id, as an unsigned number, comes first.
CREATE TABLE pair (
    low_id  BIGINT NOT NULL,
    high_id BIGINT NOT NULL,
    sealed  BLOB,                                         -- current key with its id, time and initiator; NULL: none yet
    tag     BLOB   NOT NULL,                              -- over both ids: the permission
    PRIMARY KEY (low_id, high_id)
);

CREATE INDEX pair_by_high ON pair (high_id);

-- ---- Attestation: reference values, rounds and results (LAP/1 3.2, 3.3) ----

-- A device that misses missed_limit of window_rounds rounds is put into quarantine.
CREATE TABLE attest_group (
    name             TEXT     PRIMARY KEY,
    every_s          BIGINT   NOT NULL,
    jitter_s         BIGINT   NOT NULL,
    proof_timeout_ms BIGINT   NOT NULL,
    missed_limit     BIGINT   NOT NULL,
    window_rounds    BIGINT   NOT NULL,
    late_is_missed   SMALLINT NOT NULL,
    release_mode     SMALLINT NOT NULL,                   -- 1 automatic, 2 manual
    reference        BLOB,                                -- reference value, an encoded configuration; NULL: none yet
    roll_out         BLOB,                                -- alternate reference value, valid until roll_out_until_s
    roll_out_until_s BIGINT,
    rounds_requested BIGINT   NOT NULL,                   -- counts rounds requested by a command
    revision         BIGINT   NOT NULL,
    tag              BLOB     NOT NULL
);

-- A device with an attestation key. The record of a removed prover remains without its key, so that gateways learn of the
-- removal.
CREATE TABLE prover (
    device_id           BIGINT   PRIMARY KEY,
    group_name          TEXT     NOT NULL,
    sealed              BLOB,                             -- attestation key; NULL: removed
    protection          SMALLINT NOT NULL,                -- 1 software, 2 TPM
    binding             BLOB,                             -- binding of the key to one TPM, JSON
    overlay             BLOB,                             -- the device's own entries, an encoded configuration
    location_gateway_id BIGINT,                           -- gateway that attests the device until it opens a session
    location_address    BLOB,                             -- 4 or 16 bytes
    port                BIGINT   NOT NULL,
    enrolled_at_s       BIGINT   NOT NULL,
    enrolled_period     BIGINT   NOT NULL,                -- u64, bit-cast
    revision            BIGINT   NOT NULL,
    removed             SMALLINT NOT NULL,
    tag                 BLOB     NOT NULL
);

CREATE INDEX prover_by_revision ON prover (revision);

CREATE TABLE period (
    number       BIGINT PRIMARY KEY CHECK (number >= 1),
    sealed       BLOB   NOT NULL,                         -- salt; secret until the period starts
    created_at_s BIGINT NOT NULL,
    started_at_s BIGINT,
    tag          BLOB   NOT NULL
);

-- The first round number of each gateway that is not reserved.
CREATE TABLE round_counter (
    gateway_id  BIGINT PRIMARY KEY CHECK (gateway_id BETWEEN 0 AND 4294967295),
    next_number BIGINT NOT NULL,
    tag         BLOB   NOT NULL
);

-- Completed rounds: the newest rounds of each gateway.
CREATE TABLE attest_round (
    gateway_id      BIGINT NOT NULL,
    number          BIGINT NOT NULL,
    group_name      TEXT   NOT NULL,
    period          BIGINT NOT NULL,
    started_at_s    BIGINT NOT NULL,
    ended_at_s      BIGINT NOT NULL,
    requested       BIGINT NOT NULL,                      -- provers; the next three columns add up to this number
    ok              BIGINT NOT NULL,
    late            BIGINT NOT NULL,
    missed          BIGINT NOT NULL,
    last_proof_ms BIGINT NOT NULL,
    tag             BLOB   NOT NULL,
    PRIMARY KEY (gateway_id, number)
);

-- The attestation state of a prover, as of the newest round that changed it.
CREATE TABLE appraisal (
    device_id     BIGINT   PRIMARY KEY,
    gateway_id    BIGINT   NOT NULL,
    address       BLOB,                                   -- 4 or 16 bytes
    state         SMALLINT NOT NULL,                      -- 1 ok, 2 late, 3 missed, 4 quarantined, 5 unproven
    since_s       BIGINT   NOT NULL,
    since_round   BIGINT   NOT NULL,
    configuration SMALLINT NOT NULL,                      -- 1 current, 2 alternate
    missed_rounds BLOB,                                   -- values of rounds_total at missed rounds, u32 each; NULL: none
    rounds_total  BIGINT   NOT NULL,
    tag           BLOB     NOT NULL
);

-- Evidence documents of a device: the newest document and the document before it.
CREATE TABLE evidence (
    device_id BIGINT NOT NULL,
    number    BIGINT NOT NULL,                            -- counts the device's documents
    at_s      BIGINT NOT NULL,
    sealed    BLOB   NOT NULL,                            -- bound to all other columns
    PRIMARY KEY (device_id, number)
);

-- ---- The service: events, API users, gateways, signers ----

-- Events and audit records. Numbers are consecutive; each tag also covers the tag of the previous event.
CREATE TABLE event_log (
    number     BIGINT PRIMARY KEY,
    at_ms      BIGINT NOT NULL,
    kind       TEXT   NOT NULL,
    gateway_id BIGINT,
    device_id  BIGINT,
    detail     TEXT   NOT NULL,
    actor      TEXT,                                      -- API user whose request caused the event; NULL: none
    actor_role BIGINT,
    origin     TEXT,                                      -- address that the request came from
    reason     TEXT,
    refused    BIGINT NOT NULL,                           -- 1: the requested action was refused
    tag        BLOB   NOT NULL
);

CREATE INDEX event_log_by_device ON event_log (device_id, number) WHERE device_id IS NOT NULL;
CREATE INDEX event_log_by_actor ON event_log (actor, number) WHERE actor IS NOT NULL;
CREATE INDEX event_log_by_kind ON event_log (kind, number);
CREATE INDEX event_log_by_gateway ON event_log (gateway_id, number) WHERE gateway_id IS NOT NULL;

CREATE TABLE api_user (
    name         TEXT   PRIMARY KEY,
    role         BIGINT NOT NULL,                         -- 1 viewer, 2 operator, 3 admin
    token_hash   BLOB,                                    -- SHA-256; NULL: the user authenticates with a certificate
    created_at_s BIGINT NOT NULL,
    expires_at_s BIGINT,
    tag          BLOB   NOT NULL
);

CREATE UNIQUE INDEX api_user_by_token ON api_user (token_hash);

-- Sessions of browsers.
CREATE TABLE api_session (
    session_hash BLOB   PRIMARY KEY,                      -- SHA-256 of the cookie
    user_name    TEXT   NOT NULL,
    expires_at_s BIGINT NOT NULL,
    tag          BLOB   NOT NULL
);

-- Responses to requests with an idempotency key. A repeated request gets the same response.
CREATE TABLE api_response (
    user_name TEXT   NOT NULL,
    key       TEXT   NOT NULL,
    request   BLOB   NOT NULL,                            -- SHA-256
    status    BIGINT,                                     -- NULL: in progress, or the controller stopped
    body      BLOB,                                       -- tag, then the body
    at_s      BIGINT NOT NULL,
    PRIMARY KEY (user_name, key)
);

CREATE INDEX api_response_by_time ON api_response (at_s);

-- Names of gateways. The id of a revoked gateway is never used again.
CREATE TABLE gateway_record (
    gateway_id     BIGINT PRIMARY KEY CHECK (gateway_id BETWEEN 0 AND 4294967295),
    name           TEXT   NOT NULL,
    created_at_s   BIGINT NOT NULL,
    revoked_at_s   BIGINT,
    revoked_reason TEXT,
    tag            BLOB   NOT NULL
);

-- The last status report of each gateway. Not authenticated: for display only.
CREATE TABLE gateway_state (
    gateway_id BIGINT PRIMARY KEY CHECK (gateway_id BETWEEN 0 AND 4294967295),
    at_ms      BIGINT NOT NULL,
    controller TEXT   NOT NULL,
    body       TEXT   NOT NULL                            -- JSON
);

-- Trusted signers of broadcast messages.
CREATE TABLE signer (
    signer_id    BLOB   PRIMARY KEY,
    name         TEXT   NOT NULL,
    scheme       TEXT   NOT NULL,
    public_key   BLOB   NOT NULL,
    added_at_s   BIGINT NOT NULL,
    revoked_at_s BIGINT,
    tag          BLOB   NOT NULL
);
