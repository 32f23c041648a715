-- A registry that was moved elsewhere gives nothing out any more: two of them would give out the same rows.
ALTER TABLE registry ADD COLUMN moved_to TEXT;

-- Lists of a million devices: by the beginnings of names, and those that are shut out.
CREATE INDEX device_by_name ON device (name, device_id);
CREATE INDEX device_revoked ON device (device_id) WHERE status = 2;
CREATE INDEX device_quarantined ON device (device_id) WHERE quarantined_at_s IS NOT NULL;
