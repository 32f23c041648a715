-- What devices ask of the controller, end to end (LAP/1 1.7).

-- The number of the last ticket that changed something. It stays when a device's credentials are replaced.
CREATE TABLE ticket (
    device_id BIGINT PRIMARY KEY,
    number    BIGINT NOT NULL CHECK (number >= 1),
    mac       BLOB   NOT NULL                             -- over all other columns, under the master key
);
