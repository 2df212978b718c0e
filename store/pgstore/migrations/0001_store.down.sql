-- Everything that the store holds is lost with this.
DROP VIEW {{schema}}.oldest_pending, {{schema}}.parked, {{schema}}.pending;
DROP TABLE {{schema}}.store, {{schema}}.instances, {{schema}}.sequences, {{schema}}.documents, {{schema}}.pages, {{schema}}.puts,
	{{schema}}.garbage, {{schema}}.progress, {{schema}}.step_notes, {{schema}}.attempts, {{schema}}.locks, {{schema}}.plan_ids,
	{{schema}}.watermarks, {{schema}}.accepted, {{schema}}.history, {{schema}}.cleanups, {{schema}}.audit, {{schema}}.quarantine,
	{{schema}}.aside;
-- The role is left: other databases of the cluster may use it.
REVOKE ALL ON SCHEMA {{schema}} FROM {{runtime}};
