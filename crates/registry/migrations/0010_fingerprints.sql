-- By what PUFs are recognized that are enrolled already.

-- The bands of a device's PUF, sealed: they are hashed anew where the device moves to another registry.
CREATE TABLE fingerprint (
    device_id BIGINT PRIMARY KEY,
    sealed    BLOB   NOT NULL
);

-- A keyed hash of each band. It takes the master key to make one, and to see what is hashed.
CREATE TABLE fingerprint_band (
    hash      BIGINT NOT NULL,
    device_id BIGINT NOT NULL,
    PRIMARY KEY (hash, device_id)
);
