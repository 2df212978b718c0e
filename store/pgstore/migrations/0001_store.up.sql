-- The tables of one commit store. docs/postgres.md describes every column.
-- {{schema}} and {{runtime}} are replaced by quoted names.

-- One row: what this store is. table_oid and database_oid are those of the
-- store itself; a restored dump has others, and that is how a copy is known.
CREATE TABLE {{schema}}.store (
	one          boolean PRIMARY KEY DEFAULT true CHECK (one),
	id           uuid NOT NULL DEFAULT gen_random_uuid(),
	created      timestamptz NOT NULL DEFAULT now(),
	sealed_for   text NOT NULL DEFAULT '',
	stamped      text NOT NULL DEFAULT '',
	adoptions    integer NOT NULL DEFAULT 0,
	copied_from  uuid,
	table_oid    oid NOT NULL DEFAULT 0,
	database_oid oid NOT NULL DEFAULT 0
);
INSERT INTO {{schema}}.store DEFAULT VALUES;
UPDATE {{schema}}.store SET table_oid = tableoid,
	database_oid = (SELECT oid FROM pg_database WHERE datname = current_database());

-- Driver instances and their leases. dead never becomes false again within a
-- term, so that a lease that was judged expired cannot be renewed.
CREATE TABLE {{schema}}.instances (
	id     uuid PRIMARY KEY,
	term   integer NOT NULL,
	name   text NOT NULL,
	host   text NOT NULL,
	pid    integer NOT NULL,
	joined timestamptz NOT NULL,
	until  timestamptz NOT NULL,
	dead   boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

-- Live sequences, and completed ones that are still cleaning (slot is their
-- own id then, so that they stand in nobody's way).
CREATE TABLE {{schema}}.sequences (
	id         uuid PRIMARY KEY,
	key_hash   uuid NOT NULL,
	slot       uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
	job        text COLLATE "C" NOT NULL,
	dataset    text COLLATE "C" NOT NULL,
	plan_id    text NOT NULL,
	plan_hash  text NOT NULL, -- with a plan id only; the document has it always
	plan_ref   uuid,
	created    timestamptz NOT NULL,
	steps      integer NOT NULL,
	stages     integer NOT NULL,
	long       boolean NOT NULL,
	locks      uuid[],
	state      text NOT NULL CHECK (state IN ('pending', 'parked', 'completed')),
	reason     text NOT NULL DEFAULT '',
	park_step  integer NOT NULL DEFAULT -1,
	park_told  boolean NOT NULL DEFAULT false,
	message    text NOT NULL DEFAULT '',
	declared   integer[],
	version    bigint NOT NULL DEFAULT 1,
	epoch      bigint NOT NULL DEFAULT 1,
	owner      uuid,
	owner_term integer NOT NULL DEFAULT 0,
	held       boolean NOT NULL DEFAULT true,
	claim      uuid NOT NULL,
	claimed    timestamptz NOT NULL,
	updated    timestamptz NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
-- One live sequence per key, and key order, in one index. Names that are longer
-- than an index entry can hold share a prefix and are sorted by the query.
CREATE UNIQUE INDEX sequences_key ON {{schema}}.sequences (left(job || E'\x01\x01' || dataset, 500), key_hash, slot);

-- What was planned, sealed: the header, and the steps of short sequences. The
-- row stays with the history. Keyed by the time-ordered id alone, as all tables
-- of past sequences are, so that they can be partitioned by ranges of it.
CREATE TABLE {{schema}}.documents (
	id     uuid PRIMARY KEY,
	header bytea NOT NULL,
	steps  bytea
);
-- Steps of the others, in pages.
CREATE TABLE {{schema}}.pages (
	sequence uuid NOT NULL,
	page     integer NOT NULL,
	body     bytea NOT NULL,
	PRIMARY KEY (sequence, page)
);
-- Puts of long sequences that are being written; their pages count for nothing.
CREATE TABLE {{schema}}.puts (
	sequence uuid PRIMARY KEY,
	owner    uuid NOT NULL,
	started  timestamptz NOT NULL
);
-- Sequences whose pages and progress are to be removed.
CREATE TABLE {{schema}}.garbage (sequence uuid PRIMARY KEY);

-- Done marks, one bit per step of a page.
CREATE TABLE {{schema}}.progress (
	sequence uuid NOT NULL,
	page     integer NOT NULL,
	done     bit(512) NOT NULL,
	PRIMARY KEY (sequence, page)
) WITH (fillfactor = 80);
-- Notes and point-of-no-return marks, sealed.
CREATE TABLE {{schema}}.step_notes (
	sequence  uuid NOT NULL,
	step      integer NOT NULL,
	note      bytea,
	no_return bytea,
	PRIMARY KEY (sequence, step)
);
-- Every try to execute a step. outcome '' is one that did not end.
CREATE TABLE {{schema}}.attempts (
	sequence uuid NOT NULL,
	step     integer NOT NULL,
	number   integer NOT NULL,
	started  timestamptz,
	ended    timestamptz,
	outcome  text NOT NULL DEFAULT '',
	class    text NOT NULL DEFAULT '',
	error    text NOT NULL DEFAULT '',
	driver   text NOT NULL DEFAULT '',
	forgiven boolean NOT NULL DEFAULT false,
	PRIMARY KEY (sequence, step, number)
) WITH (fillfactor = 70);

CREATE TABLE {{schema}}.locks (
	hash     uuid PRIMARY KEY,
	lock     text NOT NULL,
	sequence uuid NOT NULL
);
-- Plan ids of sequences with an outcome, for ever.
CREATE TABLE {{schema}}.plan_ids (
	hash      uuid PRIMARY KEY,
	job       text NOT NULL,
	dataset   text NOT NULL,
	plan_id   text NOT NULL,
	plan_hash text NOT NULL,
	sequence  uuid NOT NULL,
	state     text NOT NULL
);
-- value and was are JSON as in {"value":100,"epoch":1}.
CREATE TABLE {{schema}}.watermarks (
	hash     uuid PRIMARY KEY,
	job      text COLLATE "C" NOT NULL,
	source   text COLLATE "C" NOT NULL,
	value    text NOT NULL,
	was      text,
	token    uuid NOT NULL,
	sequence uuid,
	set_at   timestamptz NOT NULL,
	record   bytea NOT NULL
) WITH (fillfactor = 80);
CREATE TABLE {{schema}}.accepted (
	hash     uuid PRIMARY KEY,
	job      text NOT NULL,
	adoption integer NOT NULL,
	at       timestamptz NOT NULL
);

CREATE TABLE {{schema}}.history (
	id        uuid PRIMARY KEY,
	job       text COLLATE "C" NOT NULL,
	dataset   text COLLATE "C" NOT NULL,
	plan_id   text NOT NULL,
	state     text NOT NULL,
	created   timestamptz NOT NULL,
	ended     timestamptz NOT NULL,
	steps     integer NOT NULL,
	stages    integer NOT NULL,
	epoch     bigint NOT NULL,
	message   text NOT NULL,
	record    bytea NOT NULL
);
CREATE INDEX history_ended ON {{schema}}.history USING brin (ended);
-- What a cleanup left in place, once it ran.
CREATE TABLE {{schema}}.cleanups (
	sequence uuid PRIMARY KEY,
	at       timestamptz NOT NULL,
	report   text NOT NULL
);
CREATE TABLE {{schema}}.audit (
	number   bigint PRIMARY KEY,
	token    uuid NOT NULL UNIQUE,
	at       timestamptz NOT NULL,
	person   text NOT NULL,
	action   text NOT NULL,
	reason   text NOT NULL,
	job      text NOT NULL,
	dataset  text NOT NULL,
	sequence uuid,
	decision text NOT NULL,
	record   bytea NOT NULL
);

-- Sequences that cannot be read, as found by whoever read them.
CREATE TABLE {{schema}}.quarantine (
	sequence   uuid PRIMARY KEY,
	key_hash   uuid NOT NULL,
	job        text NOT NULL,
	dataset    text NOT NULL,
	name_known boolean NOT NULL,
	place      text NOT NULL,
	problem    text NOT NULL,
	newer      boolean NOT NULL,
	found      timestamptz NOT NULL DEFAULT now()
);
-- Damaged bytes that a person gave up.
CREATE TABLE {{schema}}.aside (
	id      uuid PRIMARY KEY DEFAULT gen_random_uuid(),
	place   text NOT NULL,
	body    bytea,
	problem text NOT NULL,
	at      timestamptz NOT NULL DEFAULT now()
);

-- For operators and dashboards.
CREATE VIEW {{schema}}.pending AS
	SELECT s.id, s.job, s.dataset, s.created, now() - s.created AS age, s.steps, s.message, s.version, s.epoch,
		CASE WHEN s.held AND NOT i.dead AND i.until > now() THEN i.name END AS holder,
		CASE WHEN s.held AND NOT i.dead AND i.until > now() THEN i.host END AS holder_host,
		CASE WHEN s.held AND NOT i.dead AND i.until > now() THEN i.until END AS held_until
	FROM {{schema}}.sequences s LEFT JOIN {{schema}}.instances i ON i.id = s.owner AND i.term = s.owner_term
	WHERE s.state = 'pending';
CREATE VIEW {{schema}}.parked AS
	SELECT s.id, s.job, s.dataset, s.created, s.updated AS parked_at, now() - s.updated AS parked_for, s.reason,
		s.park_step + 1 AS step, s.message, s.version
	FROM {{schema}}.sequences s WHERE s.state = 'parked';
CREATE VIEW {{schema}}.oldest_pending AS
	SELECT job, count(*) AS pending, min(created) AS oldest, now() - min(created) AS age
	FROM {{schema}}.sequences WHERE state = 'pending' GROUP BY job;

-- The runtime role: no DDL, and history and audit can only grow.
DO $role$ BEGIN
	CREATE ROLE {{runtime}} NOLOGIN;
EXCEPTION
	WHEN duplicate_object OR unique_violation THEN NULL; -- of another database of this cluster
	WHEN insufficient_privilege THEN
		RAISE EXCEPTION 'the role % is missing and this user may not create roles', {{runtime_text}}
			USING ERRCODE = 'insufficient_privilege', HINT = format('have an administrator run: CREATE ROLE %s NOLOGIN', {{runtime_text}});
END $role$;
GRANT USAGE ON SCHEMA {{schema}} TO {{runtime}};
GRANT SELECT ON ALL TABLES IN SCHEMA {{schema}} TO {{runtime}};
GRANT INSERT, UPDATE, DELETE ON {{schema}}.instances, {{schema}}.sequences, {{schema}}.pages, {{schema}}.puts, {{schema}}.garbage,
	{{schema}}.progress, {{schema}}.step_notes, {{schema}}.locks, {{schema}}.quarantine, {{schema}}.documents TO {{runtime}};
GRANT INSERT, UPDATE ON {{schema}}.attempts, {{schema}}.watermarks, {{schema}}.accepted TO {{runtime}};
GRANT DELETE ON {{schema}}.watermarks TO {{runtime}};
GRANT INSERT ON {{schema}}.history, {{schema}}.cleanups, {{schema}}.audit, {{schema}}.plan_ids, {{schema}}.aside TO {{runtime}};
GRANT UPDATE ON {{schema}}.store TO {{runtime}};
