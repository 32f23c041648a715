-- Rows are leased to gateways in ranges; device.idx_floor is the first row that never was.

-- A gateway's registration. The fence counts registrations: who shows an older number gets nothing.
CREATE TABLE gateway (
    gateway_id      BIGINT PRIMARY KEY CHECK (gateway_id BETWEEN 0 AND 4294967295),
    fence           BIGINT NOT NULL CHECK (fence >= 1),
    registered_at_s BIGINT NOT NULL,
    mac             BLOB   NOT NULL                              -- over all other columns, under the master key
);

-- What a gateway holds of a device. A pool device's row stays when its rows are given back, empty: its end is the number
-- after the highest row that the gateway may have used, and a device answers no lower one there (LAP/1 1.5).
CREATE TABLE lease (
    gateway_id BIGINT NOT NULL,
    device_id  BIGINT NOT NULL,
    fence      BIGINT NOT NULL CHECK (fence >= 1),                -- of the process that holds the rows below the mark
    epoch      BIGINT NOT NULL CHECK (epoch BETWEEN 0 AND 4294967295),
    first_idx  BIGINT NOT NULL CHECK (first_idx BETWEEN 0 AND 4294967295),
    end_idx    BIGINT NOT NULL CHECK (end_idx BETWEEN 0 AND 4294967295),
    mark       BIGINT NOT NULL CHECK (mark BETWEEN 0 AND 4294967295),
    mac        BLOB   NOT NULL,
    PRIMARY KEY (gateway_id, device_id),
    CHECK (first_idx <= mark AND mark <= end_idx)
);

CREATE INDEX lease_by_device ON lease (device_id);

-- Rows below idx_floor that were leased, given back unused, and are free again.
CREATE TABLE spare (
    device_id BIGINT NOT NULL,
    epoch     BIGINT NOT NULL CHECK (epoch BETWEEN 0 AND 4294967295),
    first_idx BIGINT NOT NULL CHECK (first_idx BETWEEN 0 AND 4294967295),
    end_idx   BIGINT NOT NULL CHECK (end_idx BETWEEN 0 AND 4294967295),
    mac       BLOB   NOT NULL,
    PRIMARY KEY (device_id, first_idx),
    CHECK (first_idx < end_idx)
);
