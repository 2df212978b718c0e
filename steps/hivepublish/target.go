package hivepublish

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/hs2"
)

// Target is the table, or the one partition of it, that a step publishes. It is
// part of the parameters of every kind.
type Target struct {
	// Hive is the name under which the server is bound.
	Hive string `json:"hive"`
	// Table is "database.table", or a table of the database default.
	Table string `json:"table"`
	// Partition gives every partition column its value. Empty for a table without.
	Partition map[string]string `json:"partition,omitempty"`
}

// target is a Target that was checked.
type target struct {
	db, table string
	// spec is the partition in the order of its columns' names.
	spec []keyValue
	// types are those of the partition columns, as far as they are known.
	types map[string]string
}

type keyValue struct{ col, value string }

func (t Target) check() (target, error) {
	var out target
	parts, err := splitName(t.Table)
	if err != nil {
		return out, err
	}
	switch len(parts) {
	case 1:
		out.db, out.table = "default", parts[0]
	case 2:
		out.db, out.table = parts[0], parts[1]
	default:
		return out, fmt.Errorf("table %q has %d parts; write database.table", t.Table, len(parts))
	}
	seen := map[string]bool{}
	for _, k := range slices.Sorted(maps.Keys(t.Partition)) {
		col, err := splitName(k)
		if err != nil || len(col) != 1 {
			return out, fmt.Errorf("partition column %q is no name", k)
		}
		if seen[col[0]] {
			return out, fmt.Errorf("partition column %q is named twice; Hive does not tell upper from lower case", col[0])
		}
		seen[col[0]] = true
		v := t.Partition[k]
		switch {
		case v == "":
			return out, fmt.Errorf("partition column %q has no value", col[0])
		case strings.Contains(strings.ToUpper(v), "__HIVE_DEFAULT_PARTITION__"):
			return out, fmt.Errorf("partition column %q has a value with the name of Hive's default partition", col[0])
		case !utf8.ValidString(v):
			return out, fmt.Errorf("partition column %q has a value that is not valid UTF-8", col[0])
		case strings.ContainsAny(v, "'\"\\$`") || strings.ContainsFunc(v, func(r rune) bool { return r < 0x20 || r == 0x7f }):
			// Hive's versions do not agree on how such a value is unquoted.
			return out, fmt.Errorf("partition column %q has a value with a quote, a backslash, a dollar or a control character", col[0])
		}
		out.spec = append(out.spec, keyValue{col[0], v})
	}
	slices.SortFunc(out.spec, func(a, b keyValue) int { return strings.Compare(a.col, b.col) })
	return out, nil
}

// splitName takes a dotted name apart, in lower case and without back quotes:
// Hive does not tell `Db`.T from db.t, so a lock must not.
func splitName(name string) ([]string, error) {
	var out []string
	for _, p := range strings.Split(name, ".") {
		if n := len(p); n > 2 && p[0] == '`' && p[n-1] == '`' {
			p = p[1 : n-1]
		}
		p = strings.ToLower(p)
		if p == "" || len(p) > 128 || strings.ContainsFunc(p, func(r rune) bool {
			return !(r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z')
		}) {
			return nil, fmt.Errorf("%q is no name of Hive; names are letters, digits and underscores", name)
		}
		out = append(out, p)
	}
	return out, nil
}

// dir is the table's name as a directory. No partition's directory looks like it.
func (t target) dir() string { return t.db + "." + t.table }

// sqlTable is the table's name for a statement.
func (t target) sqlTable() string { return quoteName(t.db) + "." + quoteName(t.table) }

// sqlSpec is (`dt`='2024-01-01').
func (t target) sqlSpec() string {
	return "(" + t.list(", ", func(kv keyValue) string { return quote(kv.value) }) + ")"
}

// sqlFilter is a condition on the partition columns, true for a table without. It
// compares values of the columns' types, and Hive prunes by it.
func (t target) sqlFilter() string {
	if len(t.spec) == 0 {
		return "(1 = 1)"
	}
	return "(" + t.list(" AND ", t.literal) + ")"
}

// literal is a value of the spec as SQL of its column's type.
func (t target) literal(kv keyValue) string { return literal(kv.value, t.types[kv.col]) }

func (t target) list(sep string, value func(keyValue) string) string {
	var out []string
	for _, kv := range t.spec {
		out = append(out, quoteName(kv.col)+"="+value(kv))
	}
	return strings.Join(out, sep)
}

// String is for people: sales.facts/dt=2024-01-01.
func (t target) String() string {
	s := t.db + "." + t.table
	for _, kv := range t.spec {
		s += "/" + kv.col + "=" + kv.value
	}
	return s
}

// lock is held by one live sequence over all jobs. Values are encoded, so that no
// two partitions share one.
func (t target) lock(server string) string {
	l := "hive:" + server + "/" + t.db + "." + t.table
	for _, kv := range t.spec {
		l += "/" + kv.col + "=" + strings.ReplaceAll(strings.ReplaceAll(kv.value, "%", "%25"), "/", "%2F")
	}
	if len(l) > commitstep.MaxNameBytes {
		h := sha256.Sum256([]byte(l))
		l = "hive-sha256:" + hex.EncodeToString(h[:])
	}
	return l
}

// locks are the lock, and the one that earlier versions took for the values as the
// plan spells them: a sequence that was stored by one of them may still be live.
func (t target) locks(server string, given target) []string {
	out := []string{t.lock(server)}
	old := given
	old.spec = slices.Clone(given.spec)
	for i, kv := range t.spec {
		if integerBits[parseType(t.types[kv.col]).name] > 0 {
			old.spec[i].value = kv.value // those had one form
		}
	}
	if l := old.lock(server); l != out[0] {
		out = append(out, l)
	}
	return out
}

// normal brings values into the one form that they have for their column's type:
// 01 and 1 are one partition of an int column.
func (t target) normal(cols []column) (target, error) {
	if len(cols) != len(t.spec) {
		var names []string
		for _, c := range cols {
			names = append(names, c.Name)
		}
		return t, fmt.Errorf("%s.%s has the partition columns (%s), the step names %d", t.db, t.table, strings.Join(names, ", "), len(t.spec))
	}
	out := t
	out.spec = slices.Clone(t.spec)
	for i, kv := range out.spec {
		n := slices.IndexFunc(cols, func(c column) bool { return c.Name == kv.col })
		if n < 0 {
			return t, fmt.Errorf("%s.%s has no partition column %q", t.db, t.table, kv.col)
		}
		v, err := canonical(kv.value, cols[n].Type)
		if err != nil {
			return t, fmt.Errorf("partition column %q is %s: %w", kv.col, cols[n].Type, err)
		}
		out.spec[i].value = v
	}
	return out.typed(cols), nil
}

// known is normal for a name that somebody else may have given.
func (t target) known(cols []column) target {
	if n, err := t.normal(cols); err == nil {
		return n
	}
	return t
}

// typed knows the types of the partition columns.
func (t target) typed(cols []column) target {
	t.types = map[string]string{}
	for _, c := range cols {
		t.types[c.Name] = c.Type
	}
	return t
}

// state is what the metastore says of a target right now.
type state struct {
	described
	// there is false for a partition that is not registered.
	there bool
}

// errNoTable: the table is not there, by the word of SHOW TABLES.
var errNoTable = errors.New("the table is not there")

// look asks for the partition, or for the table where there are none. That a
// partition is absent is taken from SHOW PARTITIONS alone: an error's text is not
// a proof of absence.
func (s *Server) look(ctx context.Context, t target) (state, error) {
	sql := "DESCRIBE FORMATTED " + t.sqlTable()
	if len(t.spec) > 0 {
		sql += " PARTITION " + t.sqlSpec()
	}
	tab, err := s.query(ctx, sql)
	if err == nil {
		d, err := parseDescribe(tab)
		if err == nil && d.location == "" {
			err = errors.New("DESCRIBE FORMATTED names no location; is it a view?")
		}
		if err != nil {
			return state{}, fmt.Errorf("%s: %w", t, err)
		}
		return state{d, true}, nil
	}
	if !said(err) || len(t.spec) == 0 {
		return state{}, s.tableError(ctx, t, err)
	}
	rows, serr := s.query(ctx, "SHOW PARTITIONS "+t.sqlTable()+" PARTITION "+t.sqlSpec())
	switch {
	case serr != nil:
		return state{}, s.tableError(ctx, t, serr)
	case len(rows.Rows) > 0:
		return state{}, fmt.Errorf("%s: it is there and cannot be described: %w", t, err)
	}
	return state{}, nil
}

// said reports an error that the server itself gave as its answer to a statement.
func said(err error) bool {
	var failed *hs2.StatementError
	return answered(err) && !errors.Is(err, hs2.ErrUnknownHandle) || errors.As(err, &failed)
}

// tableError asks whether a failed look has the simplest of reasons.
func (s *Server) tableError(ctx context.Context, t target, err error) error {
	if said(err) {
		// The pattern of SHOW TABLES knows * and |, which no name here has.
		tab, terr := s.query(ctx, "SHOW TABLES IN "+quoteName(t.db)+" LIKE "+quote(t.table))
		if terr == nil && len(tab.Rows) == 0 {
			return fmt.Errorf("%s.%s: %w", t.db, t.table, errNoTable)
		}
	}
	return fmt.Errorf("%s: %w", t, err)
}

// describeTable asks for the table itself.
func (s *Server) describeTable(ctx context.Context, t target) (described, error) {
	whole := t
	whole.spec = nil
	st, err := s.look(ctx, whole)
	return st.described, err
}
