package pgtarget

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// shape is what the catalog says of the table.
type shape struct {
	Kind string `json:"kind"` // pg_class.relkind; empty: there is no such table
	User string `json:"user"`
	// ReadOnly: the session's transactions are.
	ReadOnly bool `json:"readonly"`
	// Filtered: row-level security decides which rows the user sees.
	Filtered bool `json:"filtered"`
	// Parent of tables that inherit from it, other than partitions.
	Parent bool `json:"parent"`
	// Unlogged: it, or a partition of it, is empty after a crash of the server.
	Unlogged bool `json:"unlogged"`
	// Rules for INSERT or UPDATE, and triggers that may fill a new row.
	Rules    bool `json:"rules"`
	Triggers bool `json:"triggers"`
	// Unique: there is a key of exactly source and job. Deferrable: one of them
	// cannot be the target of ON CONFLICT. Folded: one of them takes different
	// names for the same.
	Unique     bool              `json:"unique"`
	Deferrable bool              `json:"deferrable"`
	Folded     bool              `json:"folded"`
	Columns    map[string]column `json:"columns"`
}

// column is one of the table's.
type column struct {
	Type   string `json:"type"`
	Length int    `json:"length"` // in characters, of a varchar(n); 0 is none
	// Bytewise: only equal bytes are equal.
	Bytewise  bool `json:"bytewise"`
	Select    bool `json:"select"`
	Insert    bool `json:"insert"`
	Update    bool `json:"update"`
	Generated bool `json:"generated"`
	// Needed in a new row: NOT NULL, by itself or its domain, without anything that fills it.
	Needed bool `json:"needed"`
}

// shapeSQL tells all of it in one answer. $1 is the table, $2 the columns of its
// key, sorted.
const shapeSQL = `SELECT json_build_object(
	'kind', coalesce(c.relkind::text, ''), 'user', current_user::text, 'readonly', current_setting('transaction_read_only') = 'on',
	'filtered', coalesce(row_security_active(c.oid), false),
	'parent', coalesce(c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid), false),
	'unlogged', coalesce(c.relpersistence <> 'p', false) OR EXISTS (SELECT FROM pg_partition_tree(c.oid) p JOIN pg_class x ON x.oid = p.relid WHERE x.relpersistence <> 'p'),
	'rules', EXISTS (SELECT FROM pg_rewrite WHERE ev_class = c.oid AND ev_type IN ('2', '3') AND ev_enabled <> 'D'),
	'triggers', EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal AND tgenabled <> 'D' AND tgtype & 7 = 7),
	'unique', coalesce(k.n > 0, false), 'deferrable', coalesce(k.deferrable, false), 'folded', coalesce(k.folded, false),
	'columns', coalesce((SELECT json_object_agg(a.attname, json_build_object(
		'type', y.typname, 'length', CASE WHEN y.typname = 'varchar' AND a.atttypmod > 4 THEN a.atttypmod - 4 ELSE 0 END,
		'bytewise', coalesce(l.collisdeterministic, true),
		'select', has_column_privilege(c.oid, a.attnum, 'SELECT'), 'insert', has_column_privilege(c.oid, a.attnum, 'INSERT'),
		'update', has_column_privilege(c.oid, a.attnum, 'UPDATE'),
		'generated', a.attgenerated <> '' OR a.attidentity = 'a',
		'needed', (a.attnotnull OR y.typnotnull) AND NOT a.atthasdef AND y.typdefault IS NULL AND a.attidentity = ''))
		FROM pg_attribute a JOIN pg_type y ON y.oid = a.atttypid LEFT JOIN pg_collation l ON l.oid = a.attcollation
		WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), '{}'))::text
FROM (SELECT to_regclass($1)::oid AS oid) r LEFT JOIN pg_class c ON c.oid = r.oid
LEFT JOIN LATERAL (SELECT count(*) AS n, bool_or(NOT i.indimmediate) AS deferrable,
		bool_or(EXISTS (SELECT FROM pg_collation l WHERE l.oid = ANY(i.indcollation::oid[]) AND NOT l.collisdeterministic)) AS folded
	FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
	AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text COLLATE "C") FROM pg_attribute a
		WHERE a.attrelid = i.indrelid AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])) = $2::text[]) k ON true`

// askShape queues the look at the catalog.
func (t *Target) askShape(b *pgx.Batch, into *shape) {
	b.Queue(shapeSQL, t.table.Sanitize(), t.keyColumns()).QueryRow(func(r pgx.Row) error {
		var text string
		if err := r.Scan(&text); err != nil {
			return err
		}
		return json.Unmarshal([]byte(text), into)
	})
}

// keyColumns are those of the unique key, sorted.
func (t *Target) keyColumns() []string {
	key := []string{t.c.Source}
	if t.c.Job != "" {
		key = append(key, t.c.Job)
	}
	slices.Sort(key)
	return key
}

var integers = []string{"int2", "int4", "int8"}
var texts = []string{"text", "varchar"}
var identities = append(slices.Clone(texts), "uuid")

// readable says why the table cannot be one of watermarks, or why what is read
// from it could not be trusted; "" when it can.
func (t *Target) readable(s *shape) string {
	switch s.Kind {
	case "r", "p":
	case "":
		return "there is no such table"
	default:
		return "it is a view, or another thing that is no table; name the table itself"
	}
	for _, col := range []struct {
		name  string
		types []string
	}{{t.c.Job, texts}, {t.c.Source, texts}, {t.c.Value, append(slices.Clone(texts), integers...)}, {t.c.Token, identities}, {t.c.Epoch, integers},
		{t.c.UpdatedAt, []string{"timestamptz", "timestamp"}}, {t.c.Sequence, identities}} {
		if col.name == "" {
			continue
		}
		have, ok := s.Columns[col.name]
		if !ok {
			return fmt.Sprintf("it has no column %q", col.name)
		}
		if !slices.Contains(col.types, have.Type) {
			return fmt.Sprintf("its column %q is of type %s; possible are %s", col.name, have.Type, strings.Join(col.types, ", "))
		}
	}
	if !s.Unique {
		return "it needs a unique key of exactly " + strings.Join(t.keyColumns(), " and ")
	}
	if s.Parent {
		return "other tables inherit from it, and no unique key covers theirs too, so one source could have several rows; name a table without children, or make it a partitioned one"
	}
	if s.Unlogged {
		return "it is unlogged or temporary: after a crash of the server it would be empty, and every source never read; ALTER it, or its partition, to SET LOGGED"
	}
	for _, name := range []string{t.c.Job, t.c.Source, t.c.Value} {
		if name != "" && !s.Columns[name].Bytewise {
			return fmt.Sprintf("the collation of its column %q takes different texts for the same, and names and positions are compared byte for byte; "+
				`ALTER its TYPE with COLLATE "C"`, name)
		}
	}
	if s.Folded {
		return `the collation of its unique key takes different names for the same, and names are compared byte for byte; make the index with COLLATE "C"`
	}
	if s.Filtered {
		return t.filtered(s.User)
	}
	return ""
}

// filtered: what a policy hides looks like a source that was never read.
func (t *Target) filtered(user string) string {
	return fmt.Sprintf("row-level security decides which of its rows user %q sees, and a hidden row would be taken for a source that was never read; "+
		"use the table's owner or a user with BYPASSRLS, or DISABLE ROW LEVEL SECURITY", user)
}

// sets are the columns that a move writes, beside the key.
func (t *Target) sets() []string {
	return slices.DeleteFunc([]string{t.c.Value, t.c.Token, t.c.Epoch, t.c.UpdatedAt, t.c.Sequence}, func(n string) bool { return n == "" })
}

// writable says what keeps every move from being made, "" when nothing does.
// insert: a row may have to be made for it.
func (t *Target) writable(s *shape, insert bool) string {
	if s.ReadOnly {
		return fmt.Sprintf("the server takes no writes from user %q: default_transaction_read_only, of the address, the role, the database or the server, is on; "+
			"take the setting away, or address a server that takes writes", s.User)
	}
	key := t.keyColumns()
	for _, need := range []struct {
		privilege string
		columns   []string
		has       func(column) bool
		wanted    bool
	}{
		{"SELECT", append(slices.Clone(key), t.sets()...), func(c column) bool { return c.Select }, true},
		{"UPDATE", t.sets(), func(c column) bool { return c.Update }, true},
		{"INSERT", append(slices.Clone(key), t.sets()...), func(c column) bool { return c.Insert }, insert},
	} {
		for _, name := range need.columns {
			if need.wanted && !need.has(s.Columns[name]) {
				return fmt.Sprintf("user %q has no privilege to %s its column %q; GRANT SELECT, INSERT, UPDATE ON %s TO %s",
					s.User, need.privilege, name, t.table.Sanitize(), q(s.User))
			}
		}
	}
	for _, name := range append(slices.Clone(key), t.sets()...) {
		if s.Columns[name].Generated {
			return fmt.Sprintf("its column %q is generated by the server, so that nothing can be written to it; use a plain column", name)
		}
	}
	for _, name := range []string{t.c.Token, t.c.Sequence} {
		if n := s.Columns[name].Length; name != "" && n > 0 && n < uuidLength {
			return fmt.Sprintf("its column %q is varchar(%d), and what it has to hold has %d characters; make it uuid or text", name, n, uuidLength)
		}
	}
	switch {
	case s.Deferrable:
		return fmt.Sprintf("its unique key of %s is deferrable, and ON CONFLICT cannot use such a key; make it NOT DEFERRABLE", strings.Join(key, " and "))
	case s.Rules:
		return "a rule changes what INSERT or UPDATE do to it, so that a move could not tell what it did; drop the rule, or use a table without"
	}
	for _, name := range slices.Sorted(maps.Keys(s.Columns)) {
		if insert && s.Columns[name].Needed && !s.Triggers && !slices.Contains(key, name) && !slices.Contains(t.sets(), name) {
			return fmt.Sprintf("its column %q is NOT NULL without a default, so that no row can be made for a source that was never read; give it a default", name)
		}
	}
	return ""
}

// uuidLength is that of a token in text.
const uuidLength = 36

// fault is an error about the table, for people.
func (t *Target) fault(text string) error { return t.faulty(errors.New(text)) }

func (t *Target) faulty(err error) error {
	return fmt.Errorf("watermark table %q of target %q: %w", strings.Join(t.table, "."), t.name, err)
}
