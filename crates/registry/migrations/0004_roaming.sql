-- The number of a device's last ticket goes when it is enrolled anew, whatever version 3 says of it.

-- Where a device opened its newest session, of devices that more than one gateway has had rows of (LAP/1 1.4.11).

CREATE TABLE roaming (
    device_id  BIGINT PRIMARY KEY,
    gateway_id BIGINT NOT NULL CHECK (gateway_id BETWEEN 0 AND 4294967295),
    boot       BLOB   NOT NULL,                           -- which start of the controller's machine began_ns counts from
    began_ns   BIGINT NOT NULL,                           -- boot-time clock; negative: before that start
    revision   BIGINT NOT NULL,                           -- under which the other gateways learn of it
    mac        BLOB   NOT NULL                            -- over all other columns, under the master key
);

CREATE INDEX roaming_by_revision ON roaming (revision);
