-- Source and cleanup paths, by digest. sequence is the newest that used the path
-- with all below it, below one that used something below it. Rows stay for ever.
-- A put that finds a path used ends its transaction by breaking paths_used.
CREATE TABLE {{schema}}.paths (
	hash     uuid PRIMARY KEY,
	sequence uuid,
	below    uuid,
	CONSTRAINT paths_used CHECK (sequence IS NOT NULL OR below IS NOT NULL)
);
GRANT SELECT, INSERT, UPDATE ON {{schema}}.paths TO {{runtime}};
