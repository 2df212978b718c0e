-- Notes and points of no return stay.
ALTER TABLE {{schema}}.step_notes DROP COLUMN epoch, DROP COLUMN serial;
