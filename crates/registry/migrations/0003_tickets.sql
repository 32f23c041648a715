-- What devices ask of the controller, end to end (LAP/1 1.7).

-- The number of the last ticket that changed something. It stays when a device's credentials are replaced.
CREATE TABLE ticket (
    device_id BIGINT PRIMARY KEY,
    number    BIGINT NOT NULL CHECK (number >= 1),
    mac       BLOB   NOT NULL                             -- over all other columns, under the master key
);

-- Pairs of devices that may talk to each other; the lower id, as an unsigned number, comes first.
CREATE TABLE pair (
    low_id  BIGINT NOT NULL,
    high_id BIGINT NOT NULL,
    current BLOB,                                         -- sealed: id, key, when made and for whom; none yet, or over
    mac     BLOB   NOT NULL,                              -- over both ids: that they are allowed
    PRIMARY KEY (low_id, high_id)
);

CREATE INDEX pair_by_high ON pair (high_id);
