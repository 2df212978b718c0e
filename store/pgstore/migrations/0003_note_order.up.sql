-- When a note was written, in the order of its driver: a write that was held up on
-- its way, and sent again meanwhile, must not put an old note over a newer one.
ALTER TABLE {{schema}}.step_notes
	ADD COLUMN epoch  bigint NOT NULL DEFAULT 0,
	ADD COLUMN serial bigint NOT NULL DEFAULT 0;
