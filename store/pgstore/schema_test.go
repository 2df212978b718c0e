package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func migrator(t *testing.T, dsn string, o *pgstore.Options) *pgstore.Migrator {
	t.Helper()
	m, err := pgstore.NewMigrator(t.Context(), dsn, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// bare is a database without our tables.
func bare(t *testing.T) (dsn, schema string) {
	t.Helper()
	c := kit.Cluster(t)
	name := kit.Name()
	require.NoError(t, c.Exec(t.Context(), "CREATE DATABASE "+name))
	t.Cleanup(func() { _ = c.Exec(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)") })
	return c.URL(name), name
}

func TestMigrationsGoUpAndDown(t *testing.T) {
	t.Parallel()
	dsn, _ := bare(t)
	m := migrator(t, dsn, nil)
	all, err := m.Status(t.Context())
	require.NoError(t, err)
	require.Len(t, all, pgstore.SchemaVersion)
	require.True(t, all[0].Applied.IsZero())

	_, err = pgstore.Open(t.Context(), dsn, nil)
	require.ErrorIs(t, err, pgstore.ErrSchema)
	require.ErrorContains(t, err, "run `commitstep store migrate --store 'postgres://pg@127.0.0.1:")
	require.ErrorContains(t, err, fmt.Sprint("needs ", pgstore.SchemaVersion))

	done, err := m.Up(t.Context(), 0)
	require.NoError(t, err)
	require.Len(t, done, pgstore.SchemaVersion)
	done, err = m.Up(t.Context(), 0)
	require.NoError(t, err)
	require.Empty(t, done, "a second run has nothing to do")
	all, err = m.Status(t.Context())
	require.NoError(t, err)
	require.False(t, all[0].Applied.IsZero())
	st, err := pgstore.Open(t.Context(), dsn, nil)
	require.NoError(t, err)
	require.Equal(t, pgstore.SchemaVersion, st.Info().Format)
	me := join(t, st, "me")
	for _, to := range []int64{1, 0} {
		done, err = m.Down(t.Context(), to)
		require.ErrorIs(t, err, commitstep.ErrBusy, "a driver is at work")
		require.ErrorContains(t, err, "me on host")
		require.Empty(t, done)
	}
	require.NoError(t, st.Leave(t.Context(), me.ID))
	require.NoError(t, st.Close())
	for _, g := range all {
		require.NotEmpty(t, g.Loses)
	}

	done, err = m.Down(t.Context(), 0)
	require.NoError(t, err)
	require.Len(t, done, pgstore.SchemaVersion)
	_, err = pgstore.Open(t.Context(), dsn, nil)
	require.ErrorIs(t, err, pgstore.ErrSchema)
	_, err = m.Up(t.Context(), 0)
	require.NoError(t, err, "and up again")
}

func TestManyMigrateAtOnce(t *testing.T) {
	t.Parallel()
	dsn, _ := bare(t)
	var wg sync.WaitGroup
	applied := make(chan int, 6)
	for range 6 {
		m := migrator(t, dsn, nil)
		wg.Go(func() {
			done, err := m.Up(t.Context(), 0)
			if err != nil {
				t.Error(err)
			}
			applied <- len(done)
		})
	}
	wg.Wait()
	close(applied)
	total := 0
	for n := range applied {
		total += n
	}
	require.Equal(t, pgstore.SchemaVersion, total, "each migration ran once")
}

// Both numbers and what to do, whether the tables are too new or too old.
func TestAnotherVersionIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	s.sql(t, `INSERT INTO migrations (version_id, is_applied) VALUES (99, true)`)
	_, err := pgstore.Open(t.Context(), s.dsn, nil)
	require.ErrorIs(t, err, pgstore.ErrSchema)
	require.ErrorContains(t, err, "version 99")
	require.ErrorContains(t, err, fmt.Sprint("up to ", pgstore.SchemaVersion))
	m := migrator(t, s.direct, nil)
	_, err = m.Up(t.Context(), 0)
	require.ErrorIs(t, err, pgstore.ErrSchema, "nor does an old program migrate")
	s.sql(t, `DELETE FROM migrations WHERE version_id > 0`)
	_, err = pgstore.Open(t.Context(), s.dsn, nil)
	require.ErrorIs(t, err, pgstore.ErrSchema)
	require.ErrorContains(t, err, "version 0")
	require.ErrorContains(t, err, "store migrate")
}

func TestMigrationsNeedADirectConnection(t *testing.T) {
	t.Parallel()
	_, err := pgstore.NewMigrator(t.Context(), kit.Bouncer(t).URL("postgres"), nil)
	require.ErrorContains(t, err, "direct connection")
}

func TestPrintedMigrationsNameTheSchema(t *testing.T) {
	t.Parallel()
	all, err := pgstore.Migrations(&pgstore.Options{Schema: "elsewhere"})
	require.NoError(t, err)
	for _, m := range all {
		require.Contains(t, m.Up, `"elsewhere".`)
		require.Contains(t, m.Down, `"elsewhere".`)
		require.NotContains(t, m.Up+m.Down, "{{")
		if strings.Contains(m.Up, "CREATE TABLE") {
			require.Contains(t, m.Up, `"elsewhere_runtime"`, "the runtime role may use what is new")
		}
	}
}

// Several engines live in one database, each in its schema.
func TestSchemasAreApart(t *testing.T) {
	t.Parallel()
	a, b := newSite(t, false), newSite(t, false)
	sa, sb := open(t, a.dsn, nil), open(t, b.dsn, nil)
	ia, ib := join(t, sa, "a"), join(t, sb, "b")
	p, q := newPlan("d"), newPlan("d")
	_, err := sa.Put(t.Context(), p.draft(), ia.ID)
	require.NoError(t, err)
	_, err = sb.Put(t.Context(), q.draft(), ib.ID)
	require.NoError(t, err)
	require.NotEqual(t, sa.Info().ID, sb.Info().ID)
	l, err := sb.Get(t.Context(), q.key)
	require.NoError(t, err)
	require.Equal(t, q.id, l.ID)
}

// runtimeUser makes a user that has the runtime role and nothing else.
func runtimeUser(t *testing.T, s site) string {
	t.Helper()
	c := kit.Cluster(t)
	name := kit.Name()
	require.NoError(t, c.Exec(t.Context(), fmt.Sprintf("CREATE ROLE %s LOGIN; GRANT %s TO %s", name, pgstore.RuntimeRole(s.schema), name)))
	t.Cleanup(func() { _ = c.Exec(context.Background(), "DROP ROLE "+name) })
	return strings.Replace(s.direct, "postgres://pg@", "postgres://"+name+"@", 1)
}

// The runtime role is enough for everything a driver and an operator do, and
// cannot change the past.
func TestTheRuntimeRole(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	dsn := runtimeUser(t, s)
	st := open(t, dsn, nil)
	me := join(t, st, "me")
	ctx := t.Context()
	p := newPlan("d")
	for i, part := range life(ctx, st, me.ID, p) {
		require.NoError(t, part(), "part %d", i)
	}
	truth(t, s, p)
	person := store.Person{Name: "op", Reason: "because of it"}
	require.NoError(t, st.SetWatermark(ctx, commitstep.WatermarkMove{WatermarkKey: p.move.WatermarkKey, From: commitstep.Int(7), To: commitstep.Int(8)}, person))
	_, err := st.AcceptWatermarks(ctx, "j", person)
	require.NoError(t, err)
	require.NoError(t, st.RecordAudit(ctx, store.AuditEntry{Person: person, Action: "staging.remove"}))
	for problem, err := range st.Check(ctx) {
		require.NoError(t, err)
		t.Error(problem)
	}
	_, err = st.PruneHistory(ctx, 0)
	require.ErrorContains(t, err, "permission denied")
	require.NoError(t, st.Leave(ctx, me.ID))

	u := strings.Replace(dsn, "&schema="+s.schema, "", 1)
	conn, err := pgx.Connect(ctx, u)
	require.NoError(t, err)
	defer conn.Close(ctx)
	for _, q := range []string{"DELETE FROM %s.audit", "UPDATE %s.audit SET reason = 'x'", "DELETE FROM %s.history", "UPDATE %s.history SET state = 'x'", "TRUNCATE %s.audit",
		"DELETE FROM %s.plan_ids", "DROP TABLE %s.audit", "CREATE TABLE %s.mine ()", "ALTER TABLE %s.history ADD x int", "INSERT INTO %s.migrations (version_id, is_applied) VALUES (5, true)"} {
		_, err := conn.Exec(ctx, fmt.Sprintf(q, s.schema))
		require.Error(t, err, q)
		require.Condition(t, func() bool {
			return strings.Contains(err.Error(), "permission denied") || strings.Contains(err.Error(), "must be owner")
		}, "%s: %v", q, err)
	}
	for _, view := range []string{"pending", "parked", "oldest_pending"} {
		_, err := conn.Exec(ctx, fmt.Sprintf("SELECT * FROM %s.%s", s.schema, view))
		require.NoError(t, err)
	}
}

func TestViews(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st := open(t, s.dsn, nil)
	me := join(t, st, "driver one")
	a, b := newPlan("a"), newPlan("b")
	_, err := st.Put(t.Context(), a.draft(), me.ID)
	require.NoError(t, err)
	l, err := st.Put(t.Context(), b.draft(), me.ID)
	require.NoError(t, err)
	require.NoError(t, st.Park(t.Context(), store.Fence{ID: l.ID, Epoch: 1}, store.Parking{Reason: commitstep.ConflictFound, Step: 1, Message: "taken"}))
	require.Equal(t, "a|driver one", value[string](t, s, `SELECT string_agg(dataset || '|' || holder, ',') FROM pending`))
	require.Equal(t, "b|CONFLICT|2|taken", value[string](t, s, `SELECT string_agg(concat_ws('|', dataset, reason, step, message), ',') FROM parked`))
	require.Equal(t, "j|1", value[string](t, s, `SELECT string_agg(concat_ws('|', job, pending), ',') FROM oldest_pending WHERE age < interval '1 minute'`))
}

// What is sent obeys the timeouts, also where the connection came without any.
func TestTimeoutsTravelWithEveryTransaction(t *testing.T) {
	t.Parallel()
	for _, pooled := range []bool{false, true} {
		s := newSite(t, pooled)
		st := open(t, s.dsn, &pgstore.Options{LockTimeout: 100 * time.Millisecond, GiveUp: 300 * time.Millisecond})
		me := join(t, st, "me")
		l, err := st.Put(t.Context(), newPlan("a").draft(), me.ID)
		require.NoError(t, err)
		conn, err := pgx.Connect(t.Context(), kit.Cluster(t).URL("postgres"))
		require.NoError(t, err)
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), fmt.Sprintf("SELECT FROM %s.sequences FOR UPDATE", s.schema))
		require.NoError(t, err)
		started := time.Now()
		err = st.Record(t.Context(), store.Fence{ID: l.ID, Epoch: 1}, true, store.Event{Type: store.EventDone})
		require.ErrorIs(t, err, pgstore.ErrUnreachable)
		require.ErrorContains(t, err, "lock timeout")
		require.Less(t, time.Since(started), 10*time.Second)
		require.NoError(t, tx.Rollback(t.Context()))
		require.NoError(t, conn.Close(t.Context()))
		require.NoError(t, st.Record(t.Context(), store.Fence{ID: l.ID, Epoch: 1}, true, store.Event{Type: store.EventDone}))
		require.True(t, strings.HasPrefix(value[string](t, s, `SELECT current_setting('lock_timeout')`), "0"))
	}
	_, err := pgstore.Open(t.Context(), kit.Cluster(t).URL("postgres")+"&statement_timeout=5", nil)
	require.ErrorContains(t, err, `statement_timeout to "5", which is no duration`)
}

// A role or database that turned synchronous_commit off does not weaken what
// durable means.
func TestWritesAreSynchronousWhateverTheRoleSays(t *testing.T) {
	t.Parallel()
	for role, want := range map[string]string{"off": "on", "local": "on", "remote_write": "on", "remote_apply": "remote_apply"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, false)
			dsn := runtimeUser(t, s)
			user := strings.TrimPrefix(strings.Split(dsn, "@")[0], "postgres://")
			require.NoError(t, kit.Cluster(t).Exec(t.Context(), "ALTER ROLE "+user+" SET synchronous_commit = "+role))
			// What a transaction of the store runs with, told by a trigger.
			s.sql(t, `CREATE TABLE seen (v text)`)
			s.sql(t, fmt.Sprintf(`CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
				INSERT INTO %[1]s.seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$`, s.schema))
			s.sql(t, `CREATE TRIGGER note AFTER INSERT ON sequences FOR EACH ROW EXECUTE FUNCTION note()`)
			st := open(t, dsn, nil)
			me := join(t, st, "me")
			_, err := st.Put(t.Context(), newPlan("a").draft(), me.ID)
			require.NoError(t, err)
			require.Equal(t, want, value[string](t, s, `SELECT string_agg(v, ',') FROM seen`))
			require.NoError(t, st.Leave(t.Context(), me.ID))
		})
	}
}

func TestBadAddressesAreRefusedWithoutTheirPassword(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{"postgres://u:geheim@host:port/db", "postgres://u:geheim@host/db?pool_max_conns=x", "not an address geheim", "postgres://%zz:geheim@h/"} {
		_, err := pgstore.Open(t.Context(), dsn, nil)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "geheim", dsn)
	}
	_, err := pgstore.Open(t.Context(), "postgres://u@127.0.0.1:1/db?schema=Bad-Name", nil)
	require.ErrorContains(t, err, "no usable name")
	_, err = pgstore.Open(t.Context(), "postgres://u:geheim@127.0.0.1:1/db?give_up=1ms", nil)
	require.ErrorIs(t, err, pgstore.ErrUnreachable)
	require.NotContains(t, err.Error(), "geheim")
}

// A dump that is restored elsewhere is a copy, and runs nothing until somebody
// adopts it.
func TestARestoredDumpIsRecognised(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st := open(t, s.dsn, nil)
	require.Empty(t, st.Info().Stamped)
	me := join(t, st, "me")
	l, err := st.Put(t.Context(), newPlan("a").draft(), me.ID)
	require.NoError(t, err)
	elsewhere := s.restored(t)
	copied := open(t, elsewhere.dsn, nil)
	require.NotEmpty(t, copied.Info().Stamped)
	in := commitstep.Instance{ID: me.ID, Name: "me"}
	_, err = copied.Put(t.Context(), newPlan("b").draft(), in.ID)
	require.ErrorIs(t, err, commitstep.ErrStamped)
	_, err = copied.Claim(t.Context(), in.ID, store.ClaimFilter{})
	require.ErrorIs(t, err, commitstep.ErrStamped)
	n, err := copied.Adopt(t.Context(), store.Person{Name: "op", Reason: "the old one burnt"})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Empty(t, copied.Info().Stamped)
	got, err := copied.Get(t.Context(), l.Key)
	require.NoError(t, err)
	require.Equal(t, commitstep.Adopted, got.Reason)
	un, err := copied.Unaccepted(t.Context(), "j")
	require.NoError(t, err)
	require.True(t, un)
	require.Empty(t, open(t, elsewhere.dsn, nil).Info().Stamped)
	// The original goes on.
	got, err = st.Get(t.Context(), l.Key)
	require.NoError(t, err)
	require.Equal(t, commitstep.Pending, got.State)
	require.Empty(t, open(t, s.dsn, nil).Info().Stamped)
}

// Damage in one sequence is that sequence's trouble alone.
func TestDamagedRowsAreSetAside(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st := open(t, s.dsn, nil)
	me := join(t, st, "me")
	ctx := t.Context()
	bad, good, newer := newPlan("bad"), newPlan("good"), newPlan("newer")
	for _, p := range []plan{bad, good, newer} {
		_, err := st.Put(ctx, p.draft(), me.ID)
		require.NoError(t, err)
	}
	require.NoError(t, st.Leave(ctx, me.ID))
	s.sql(t, `UPDATE documents SET header = set_byte(header, 40, 255 - get_byte(header, 40)) WHERE id = $1`, bad.id)
	raw := value[[]byte](t, s, `SELECT header FROM documents WHERE id = $1`, newer.id)
	future := commitstep.SealVersion(commitstep.RecordHeader, commitstep.FormatVersion+1, append(newer.id[:], 'h'), raw[8:])
	s.sql(t, `UPDATE documents SET header = $2 WHERE id = $1`, newer.id, future)

	other := open(t, s.dsn, nil)
	me = join(t, other, "other")
	got, err := other.Claim(ctx, me.ID, store.ClaimFilter{})
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.Equal(t, "good", got[0].Dataset)
	q, err := other.Quarantine(ctx)
	require.NoError(t, err)
	require.Len(t, q, 2)
	require.Equal(t, "bad", q[0].Key.Dataset)
	require.False(t, q[0].Newer)
	require.Equal(t, "newer", q[1].Key.Dataset)
	require.True(t, q[1].Newer)
	require.Contains(t, q[1].Problem, "format 2")
	_, err = other.Get(ctx, bad.key)
	require.ErrorIs(t, err, commitstep.ErrDamaged)
	_, err = other.Get(ctx, newer.key)
	require.ErrorIs(t, err, commitstep.ErrNewerFormat)
	_, err = other.Put(ctx, newPlan("bad").draft(), me.ID)
	require.ErrorIs(t, err, commitstep.ErrDamaged, "its key is not free")
	person := store.Person{Name: "op", Reason: "looked at it"}
	require.ErrorIs(t, other.ReleaseQuarantine(ctx, bad.key, person), commitstep.ErrDamaged)
	s.sql(t, `UPDATE documents SET header = set_byte(header, 40, 255 - get_byte(header, 40)) WHERE id = $1`, bad.id)
	require.NoError(t, other.ReleaseQuarantine(ctx, bad.key, person))
	l, err := other.Get(ctx, bad.key)
	require.NoError(t, err)
	require.Equal(t, bad.id, l.ID)
	require.NoError(t, other.AbandonQuarantine(ctx, newer.key, person))
	require.Equal(t, future, value[[]byte](t, s, `SELECT substr(body, 1, $1) FROM aside`, len(future)))
	h, err := other.LookupHistory(ctx, newer.id)
	require.NoError(t, err)
	require.Equal(t, commitstep.Abandoned, h.State)
	_, err = other.Put(ctx, newPlan("newer").draft(), me.ID)
	require.NoError(t, err, "its key and locks are free")
}

func TestADamagedWatermarkIsAnErrorAndNeverNone(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st := open(t, s.dsn, nil)
	ctx := t.Context()
	k := commitstep.WatermarkKey{Job: "j", Source: "s"}
	person := store.Person{Name: "op", Reason: "looked at it"}
	require.NoError(t, st.SetWatermark(ctx, commitstep.WatermarkMove{WatermarkKey: k, To: commitstep.Int(5)}, person))
	s.sql(t, `UPDATE watermarks SET value = '{"value":6}'`)
	_, err := st.Watermark(ctx, k)
	require.ErrorIs(t, err, commitstep.ErrDamaged)
	for _, err := range st.ListWatermarks(ctx, "") {
		require.ErrorIs(t, err, commitstep.ErrDamaged)
	}
	problems := 0
	for range st.Check(ctx) {
		problems++
	}
	require.Equal(t, 1, problems)
	require.NoError(t, st.AbandonQuarantine(ctx, commitstep.Key{Job: "j", Dataset: "s"}, person))
	_, err = st.Watermark(ctx, k)
	require.True(t, errors.Is(err, commitstep.ErrNotFound))
}
