package pgtarget_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/steptest"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/steps/watermark/pgtarget"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

const small = `source text PRIMARY KEY, pos bigint, token uuid`

var smallColumns = pgtarget.Columns{Source: "source", Value: "pos", Token: "token"}

// as has the table used by a role of its own, with the given grants on it.
func (tb *table) as(grants string) (role string) {
	tb.t.Helper()
	role = kit.Name()
	schema := strings.TrimSuffix(tb.name, ".marks")
	sql := fmt.Sprintf("CREATE ROLE %s LOGIN; GRANT USAGE ON SCHEMA %s TO %[1]s;", role, schema)
	if grants != "" {
		sql += fmt.Sprintf("GRANT %s ON %s TO %s", grants, tb.name, role)
	}
	require.NoError(tb.t, kit.Cluster(tb.t).Exec(tb.t.Context(), sql))
	tb.cfg.DSN = strings.Replace(tb.cfg.DSN, "//pg@", "//"+role+"@", 1)
	return role
}

const all = "SELECT, INSERT, UPDATE"

// What is read from such a table could be wrong, so that nothing is: neither for
// a command nor for a plan. None is never the answer.
func TestTablesThatCannotBeTrusted(t *testing.T) {
	t.Parallel()
	icu := "CREATE COLLATION %[2]s.folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
	for name, c := range map[string]struct {
		definition string
		columns    pgtarget.Columns
		sql        string // after the table was made; %[1]s is the table, %[2]s its schema
		want       []string
	}{
		"a policy hides rows": {small, smallColumns, `INSERT INTO %[1]s VALUES ('MyTopic:0', 500); ALTER TABLE %[1]s ENABLE ROW LEVEL SECURITY; CREATE POLICY a ON %[1]s FOR SELECT USING (false)`,
			[]string{"row-level security", "BYPASSRLS"}},
		"no policy at all": {small, smallColumns, `INSERT INTO %[1]s VALUES ('MyTopic:0', 500); ALTER TABLE %[1]s ENABLE ROW LEVEL SECURITY`, []string{"row-level security"}},
		"a source of any case": {small, smallColumns, icu + `ALTER TABLE %[1]s ALTER source TYPE text COLLATE %[2]s.folded; INSERT INTO %[1]s VALUES ('mytopic:0', 500)`,
			[]string{`column "source"`, "byte for byte", `COLLATE "C"`}},
		"a job of any case": {`job text, source text, pos bigint, token uuid, UNIQUE (job, source)`, pgtarget.Columns{Job: "job", Source: "source", Value: "pos", Token: "token"},
			icu + `ALTER TABLE %[1]s ALTER job TYPE text COLLATE %[2]s.folded`, []string{`column "job"`, "byte for byte"}},
		"a key of any case": {small, smallColumns, icu + `CREATE UNIQUE INDEX ON %[1]s (source COLLATE %[2]s.folded)`, []string{"unique key", "byte for byte"}},
		"a position of any case": {`source text PRIMARY KEY, pos text, token uuid`, smallColumns, icu + `ALTER TABLE %[1]s ALTER pos TYPE text COLLATE %[2]s.folded`,
			[]string{`column "pos"`, "byte for byte"}},
		"children":              {small, smallColumns, `CREATE TABLE %[2]s.child () INHERITS (%[1]s); INSERT INTO %[2]s.child VALUES ('MyTopic:0', 500)`, []string{"inherit", "children"}},
		"unlogged":              {small, smallColumns, `ALTER TABLE %[1]s SET UNLOGGED`, []string{"unlogged", "SET LOGGED"}},
		"an unlogged partition": {small + `) PARTITION BY HASH (source`, smallColumns, `CREATE UNLOGGED TABLE %[2]s.p PARTITION OF %[1]s FOR VALUES WITH (MODULUS 1, REMAINDER 0)`, []string{"unlogged", "SET LOGGED"}},
		"a view":                {small, smallColumns, `ALTER TABLE %[1]s RENAME TO real; CREATE VIEW %[1]s AS SELECT * FROM %[2]s.real`, []string{"view"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tb := newTable(t, c.definition, c.columns)
			tb.as(all)
			later := *tb
			open := later.open() // before the table became like that
			require.NoError(t, tb.sql(strings.ReplaceAll(strings.ReplaceAll(c.sql, "%[1]s", tb.name), "%[2]s", strings.TrimSuffix(tb.name, ".marks"))+"; SELECT '%s'"))
			_, err := pgtarget.Open(t.Context(), tb.cfg)
			to := commitstep.Int(1)
			if strings.Contains(c.definition, "pos text") {
				to = commitstep.Text("1")
			}
			_, perr := open.Plan(t.Context(), move(commitstep.None(), to))
			for _, err := range []error{err, perr} {
				for _, want := range append(c.want, tb.name, `target "marks"`) {
					require.ErrorContains(t, err, want)
				}
				require.NotErrorIs(t, err, commitstep.ErrNotFound)
				require.NotErrorIs(t, err, commitstep.ErrUnavailable)
			}
		})
	}
}

// A policy that comes while a program runs is met at the next look and move, and
// a row under another name is not taken for the one that was asked for.
func TestTablesThatChangeWhileTheyAreUsed(t *testing.T) {
	t.Parallel()
	tb := newTable(t, small, smallColumns)
	tb.as(all)
	tg := tb.open()
	require.NoError(t, tg.CompareAndSet(t.Context(), move(commitstep.None(), commitstep.Int(500)), uuid.New()))
	require.NoError(t, tb.sql(`ALTER TABLE %s ENABLE ROW LEVEL SECURITY`))
	_, err := tg.Watermark(t.Context(), topic)
	require.ErrorContains(t, err, "row-level security")
	require.NotErrorIs(t, err, commitstep.ErrNotFound)
	for _, err := range tg.List(t.Context(), "") {
		require.ErrorContains(t, err, "row-level security")
	}
	for _, m := range []commitstep.WatermarkMove{move(commitstep.Int(500), commitstep.Int(501)), move(commitstep.None(), commitstep.Int(501))} {
		err = tg.CompareAndSet(t.Context(), m, uuid.New())
		require.ErrorContains(t, err, "row-level security")
		require.Equal(t, commitstep.ClassRefused, commitstep.ClassOf(err))
	}
	require.NoError(t, tb.sql(`ALTER TABLE %s DISABLE ROW LEVEL SECURITY`))
	v, err := tg.Watermark(t.Context(), topic)
	require.NoError(t, err)
	require.Equal(t, commitstep.Int(500), v.Watermark)

	// A column that was too small is looked at again.
	require.NoError(t, tb.sql(`ALTER TABLE %s ALTER pos TYPE int`))
	big := move(commitstep.Int(500), commitstep.Int(1<<40))
	require.ErrorContains(t, plan(tg, big), "int4")
	require.True(t, commitstep.IsPermanent(tg.CompareAndSet(t.Context(), big, uuid.New())))
	require.NoError(t, tb.sql(`ALTER TABLE %s ALTER pos TYPE bigint`))
	require.NoError(t, tg.CompareAndSet(t.Context(), big, uuid.New()))

	schema := strings.TrimSuffix(tb.name, ".marks")
	require.NoError(t, tb.sql("CREATE COLLATION "+schema+".folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false); ALTER TABLE %s ALTER source TYPE text COLLATE "+schema+".folded"))
	_, err = tg.Watermark(t.Context(), commitstep.WatermarkKey{Job: topic.Job, Source: "mytopic:0"})
	require.ErrorContains(t, err, "byte for byte")
	require.NotErrorIs(t, err, commitstep.ErrNotFound)
}

// What a move would fail by is found when it is planned, as one error that names
// the step and says what to do. Reading such a table is fine.
func TestMovesThatCannotBe(t *testing.T) {
	t.Parallel()
	none, one, two := commitstep.None(), commitstep.Int(1), commitstep.Int(2)
	for name, c := range map[string]struct {
		definition string
		value      commitstep.Watermark // stored before
		columns    pgtarget.Columns
		grants     string
		sql        string // after the table was made
		move       commitstep.WatermarkMove
		want       []string
	}{
		"select only":           {definition: small, columns: smallColumns, grants: "SELECT", move: move(none, one), want: []string{"no privilege to UPDATE", `column "pos"`, "GRANT SELECT, INSERT, UPDATE"}},
		"no insert for a first": {definition: small, columns: smallColumns, grants: "SELECT, UPDATE", move: move(none, one), want: []string{"no privilege to INSERT"}},
		"no update of a column": {definition: small, columns: smallColumns, grants: "SELECT, INSERT, UPDATE (pos)", move: move(none, one), want: []string{"no privilege to UPDATE", `column "token"`}},
		"a short token": {definition: `source text PRIMARY KEY, pos bigint, token varchar(20)`, columns: smallColumns, move: move(none, one),
			want: []string{`column "token" is varchar(20)`, "36"}},
		"a short sequence": {definition: small + `, seq varchar(35)`, columns: pgtarget.Columns{Source: "source", Value: "pos", Token: "token", Sequence: "seq"}, move: move(none, one),
			want: []string{`column "seq" is varchar(35)`}},
		"beyond int2":     {definition: `source text PRIMARY KEY, pos smallint, token uuid`, columns: smallColumns, move: move(none, commitstep.Int(1<<15)), want: []string{"int2", "32767", "32768", "bigint"}},
		"beyond int4":     {definition: `source text PRIMARY KEY, pos int, token uuid`, columns: smallColumns, move: move(none, commitstep.Int(-1<<31-1)), want: []string{"int4", "-2147483649"}},
		"a text as value": {definition: small, columns: smallColumns, move: move(none, commitstep.Text("x")), want: []string{`column "pos"`, "int8"}},
		"a long value": {definition: `source text PRIMARY KEY, pos varchar(4), token uuid`, columns: smallColumns, move: move(none, commitstep.Text("ä2345")),
			want: []string{"varchar(4)", "5 characters"}},
		"a value with spaces that would be cut off": {definition: `source text PRIMARY KEY, pos varchar(4), token uuid`, columns: smallColumns, move: move(none, commitstep.Text("1234 ")), want: []string{"varchar(4)"}},
		"a long source": {definition: `source varchar(8) PRIMARY KEY, pos bigint, token uuid`, columns: smallColumns, move: move(none, one), want: []string{`column "source" is varchar(8)`, "9 characters"}},
		"a long job": {definition: `source text, job varchar(9), pos bigint, token uuid, UNIQUE (job, source)`, columns: pgtarget.Columns{Job: "job", Source: "source", Value: "pos", Token: "token"}, move: move(none, one),
			want: []string{`column "job" is varchar(9)`}},
		"a deferrable key":         {definition: `source text UNIQUE DEFERRABLE, pos bigint, token uuid`, columns: smallColumns, move: move(none, one), want: []string{"deferrable"}},
		"an epoch without a place": {definition: small, columns: smallColumns, move: move(none, one.InEpoch(1)), want: []string{"no epoch column"}},
		"an epoch beyond int2": {definition: small + `, epoch smallint`, columns: pgtarget.Columns{Source: "source", Value: "pos", Token: "token", Epoch: "epoch"}, move: move(none, one.InEpoch(1<<15)),
			want: []string{`epoch column "epoch"`, "32767"}},
		"an epoch beyond int8": {definition: small + `, epoch bigint`, columns: pgtarget.Columns{Source: "source", Value: "pos", Token: "token", Epoch: "epoch"}, move: move(none, one.InEpoch(1<<63)),
			want: []string{`epoch column "epoch"`}},
		"a rule":                     {definition: small, columns: smallColumns, sql: `CREATE RULE r AS ON UPDATE TO %[1]s DO INSTEAD NOTHING`, value: one, move: move(one, two), want: []string{"rule"}},
		"a column that nobody fills": {definition: small + `, owner text NOT NULL`, columns: smallColumns, move: move(none, one), want: []string{`column "owner"`, "NOT NULL", "default"}},
		"a domain that nobody fills": {definition: small, columns: smallColumns, sql: `CREATE DOMAIN %[1]s_d AS text NOT NULL; ALTER TABLE %[1]s ADD owner %[1]s_d`, move: move(none, one), want: []string{`column "owner"`, "NOT NULL", "default"}},
		"a generated value":          {definition: `source text PRIMARY KEY, x int, pos int GENERATED ALWAYS AS (x) STORED, token uuid`, columns: smallColumns, move: move(none, one), want: []string{"generated"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tb := newTable(t, c.definition, c.columns)
			if c.grants == "" {
				c.grants = all
			}
			if n, ok := c.value.Int64(); ok {
				require.NoError(t, tb.sql(`INSERT INTO %s (source, pos) VALUES ($1, $2)`, topic.Source, n))
			}
			if c.sql != "" {
				require.NoError(t, kit.Cluster(t).Exec(t.Context(), strings.ReplaceAll(c.sql, "%[1]s", tb.name)))
			}
			tb.as(c.grants)
			before, err := tb.dump()
			require.NoError(t, err)
			tg := tb.open()
			v, err := tg.Watermark(t.Context(), topic)
			if c.value.IsNone() {
				require.ErrorIs(t, err, commitstep.ErrNotFound)
			} else {
				require.NoError(t, err)
				require.Equal(t, c.value, v.Watermark)
			}
			err = plan(tg, c.move)
			for _, want := range append(c.want, "stage 1 step 1 (watermark.set)", tb.name, `target "marks"`) {
				require.ErrorContains(t, err, want)
			}
			var pe *commitstep.PlanError
			require.ErrorAs(t, err, &pe)
			require.NotContains(t, err.Error(), "args[")
			after, err := tb.dump()
			require.NoError(t, err)
			require.Equal(t, before, after)
		})
	}
}

// plan prepares the step for a move, as a driver does.
func plan(tg watermark.Target, m commitstep.WatermarkMove) error {
	spec := watermark.Set(m.Source, m.From, m.To, watermark.In(tg.Name()))
	if spec.Err != nil {
		return spec.Err
	}
	k := watermark.Kind(nil, tg)
	s := commitstep.Step{Kind: k.Name, Version: k.Version, Class: k.Class, Params: spec.Params}
	b, err := k.New(s)
	if err != nil {
		return err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	pl, err := commitstep.NewPlanning(id, commitstep.Key{Job: m.Job, Dataset: "d"}, nil)
	if err != nil {
		return err
	}
	return b.(commitstep.Preparer).Prepare(context.Background(), pl.For(s))
}

// Tables that look like those above, and can be moved.
func TestMovesThatCanBe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		definition, grants, sql string
		from                    commitstep.Watermark
		owner                   bool
	}{
		"grants on columns":                  {definition: small + `, note text`, grants: "SELECT (source, pos, token), INSERT (source, pos, token), UPDATE (pos, token)"},
		"no insert where there is a row":     {definition: small, grants: "SELECT, UPDATE", sql: `INSERT INTO %[1]s VALUES ('MyTopic:0', 1)`, from: commitstep.Int(1)},
		"a trigger that fills":               {definition: small + `, owner text NOT NULL`, sql: `CREATE FUNCTION %[1]s_f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.owner = 1; RETURN NEW; END'; CREATE TRIGGER t BEFORE INSERT ON %[1]s FOR EACH ROW EXECUTE FUNCTION %[1]s_f()`},
		"a default of a domain":              {definition: small, sql: `CREATE DOMAIN %[1]s_d AS text DEFAULT 'nobody'; ALTER TABLE %[1]s ADD owner %[1]s_d NOT NULL`},
		"a default of a NOT NULL domain":     {definition: small, sql: `CREATE DOMAIN %[1]s_d AS text NOT NULL DEFAULT 'nobody'; ALTER TABLE %[1]s ADD owner %[1]s_d`},
		"partitions":                         {definition: small + `) PARTITION BY HASH (source`, sql: `CREATE TABLE %[1]s_0 PARTITION OF %[1]s FOR VALUES WITH (MODULUS 1, REMAINDER 0)`},
		"columns of an index beside its key": {definition: `source text, pos bigint, token uuid, UNIQUE (source) INCLUDE (pos)`},
		"policies that its owner is free of": {definition: small, owner: true, sql: `ALTER TABLE %[1]s ENABLE ROW LEVEL SECURITY; CREATE POLICY a ON %[1]s USING (false)`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tb := newTable(t, c.definition, smallColumns)
			if c.grants == "" {
				c.grants = all
			}
			if c.sql != "" {
				require.NoError(t, kit.Cluster(t).Exec(t.Context(), strings.ReplaceAll(c.sql, "%[1]s", tb.name)))
			}
			role := tb.as(c.grants)
			if c.owner {
				require.NoError(t, tb.sql(`ALTER TABLE %s OWNER TO `+role))
			}
			tg := tb.open()
			m := move(c.from, commitstep.Int(7))
			require.NoError(t, plan(tg, m))
			require.NoError(t, tg.CompareAndSet(t.Context(), m, uuid.New()))
			v, err := tg.Watermark(t.Context(), topic)
			require.NoError(t, err)
			require.Equal(t, m.To, v.Watermark)
		})
	}
}

// A trigger that drops what is written is no other writer: it is told, and not
// tried for ever.
func TestATriggerThatWritesNothing(t *testing.T) {
	t.Parallel()
	tb := newTable(t, small, smallColumns)
	require.NoError(t, kit.Cluster(t).Exec(t.Context(), strings.ReplaceAll(`INSERT INTO %[1]s VALUES ('MyTopic:0', 1);
		CREATE FUNCTION %[1]s_f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE TRIGGER t BEFORE INSERT OR UPDATE ON %[1]s FOR EACH ROW EXECUTE FUNCTION %[1]s_f()`, "%[1]s", tb.name)))
	tg := tb.open()
	for _, m := range []commitstep.WatermarkMove{move(commitstep.Int(1), commitstep.Int(2)), {WatermarkKey: commitstep.WatermarkKey{Job: "j", Source: "new"}, To: commitstep.Int(1), Token: uuid.New()}} {
		err := tg.CompareAndSet(t.Context(), m, uuid.New())
		require.ErrorContains(t, err, "nothing was written")
		require.ErrorContains(t, err, "trigger")
		require.True(t, commitstep.IsPermanent(err), "%v", err)
		require.NotErrorIs(t, err, commitstep.ErrStale)
	}
}

// A trigger that writes something else than what was planned has not done what
// was planned, whatever token stands beside it: not when the move is made, not
// when it is made again, and not for who looks at it later.
func TestATriggerThatWritesSomethingElse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		does    string
		from    commitstep.Watermark
		verdict string
	}{
		"a first value":   {"NEW.pos = NEW.pos * 10", commitstep.None(), "carries our token, but is another: stored 70, planned from none to 7"},
		"a later value":   {"NEW.pos = NEW.pos * 10", commitstep.Int(1), "carries our token, but is another: stored 70, planned from 1 to 7"},
		"the value as is": {"NEW.pos = 1", commitstep.Int(1), "carries our token, but is another: stored 1, planned from 1 to 7"},
		"no value":        {"NEW.pos = NULL", commitstep.Int(1), "stored none, planned from 1 to 7"},
		"a token":         {"NEW.token = gen_random_uuid()", commitstep.Int(1), "is already past: stored 7, planned from 1 to 7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tb := newTable(t, small, smallColumns)
			if n, ok := c.from.Int64(); ok {
				require.NoError(t, tb.sql(`INSERT INTO %s VALUES ($1, $2)`, topic.Source, n))
			}
			tg := tb.open()
			kinds := commitstep.NewRegistry(watermark.Kind(nil, tg))
			p, err := steptest.Plan(t.Context(), kinds, commitstep.NewPlan(topic.Job, "d").Step(watermark.Set(topic.Source, c.from, commitstep.Int(7), watermark.In("marks"))))
			require.NoError(t, err)
			require.NoError(t, kit.Cluster(t).Exec(t.Context(), strings.ReplaceAll(`CREATE FUNCTION %[1]s_f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN `+c.does+`; RETURN NEW; END';
				CREATE TRIGGER t BEFORE INSERT OR UPDATE ON %[1]s FOR EACH ROW EXECUTE FUNCTION %[1]s_f()`, "%[1]s", tb.name)))
			proc, err := p.Process(kinds, 0)
			require.NoError(t, err)
			v, err := proc.Verify(t.Context())
			require.NoError(t, err)
			require.Equal(t, commitstep.NotDone, v.Outcome)
			err = proc.Execute(t.Context())
			require.ErrorContains(t, err, "it did not keep what was written: planned 7")
			require.ErrorContains(t, err, "trigger")
			require.True(t, commitstep.IsPermanent(err), "%v", err)
			for range 2 {
				v, err = proc.Verify(t.Context())
				require.NoError(t, err)
				require.Equal(t, commitstep.Conflict, v.Outcome, "%s", v.Evidence)
				require.Contains(t, v.Evidence, c.verdict)
				require.Equal(t, commitstep.ClassRefused, commitstep.ClassOf(proc.Execute(t.Context())))
			}
		})
	}
}
