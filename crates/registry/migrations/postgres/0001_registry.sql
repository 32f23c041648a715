
-- What SQLite has of itself: a place of each row, which no value in its columns changes, and the type of a value.
ALTER TABLE device ADD COLUMN rowid BIGINT GENERATED ALWAYS AS IDENTITY UNIQUE;

CREATE FUNCTION typeof(BIGINT) RETURNS TEXT LANGUAGE SQL IMMUTABLE AS 'SELECT CAST(''integer'' AS TEXT)';
