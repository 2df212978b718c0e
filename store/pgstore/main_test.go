package pgstore_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/commitstep/engine/internal/testkit/pgkit"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

var kit pgkit.Kit

func TestMain(m *testing.M) {
	// Each random run makes a store of its own, which takes its time here.
	if f := flag.Lookup("rapid.checks"); f != nil {
		_ = f.Value.Set("15")
	}
	code := kit.Run(m)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// site is where a test's store is.
type site struct {
	dsn      string // as the store is to be opened
	direct   string // without a pooler
	database string
	schema   string
}

// newSite makes an empty store in a schema of its own.
func newSite(t testing.TB, pooled bool) site {
	t.Helper()
	c := kit.Cluster(t)
	s := siteIn(t, "postgres", kit.Name(), pooled)
	migrate(t, s.direct, nil)
	t.Cleanup(func() {
		_ = c.Exec(context.Background(), "DROP SCHEMA "+s.schema+" CASCADE; DROP OWNED BY "+pgstore.RuntimeRole(s.schema)+"; DROP ROLE "+pgstore.RuntimeRole(s.schema))
	})
	return s
}

func siteIn(t testing.TB, database, schema string, pooled bool) site {
	t.Helper()
	s := site{database: database, schema: schema}
	s.direct = kit.Cluster(t).URL(database) + "&schema=" + schema
	s.dsn = s.direct
	if pooled {
		s.dsn = kit.Bouncer(t).URL(database) + "&schema=" + schema
	}
	return s
}

// restored is a dump of the site's schema in another database.
func (s site) restored(t testing.TB) site {
	t.Helper()
	c := kit.Cluster(t)
	to := kit.Name()
	require.NoError(t, c.Restore(context.Background(), s.database, s.schema, to))
	t.Cleanup(func() { _ = c.Exec(context.Background(), "DROP DATABASE "+to+" WITH (FORCE)") })
	return siteIn(t, to, s.schema, s.dsn != s.direct)
}

func migrate(t testing.TB, dsn string, o *pgstore.Options) {
	t.Helper()
	m, err := pgstore.NewMigrator(context.Background(), dsn, o)
	require.NoError(t, err)
	defer m.Close()
	_, err = m.Up(context.Background(), 0)
	require.NoError(t, err)
}

func open(t testing.TB, dsn string, o *pgstore.Options) *pgstore.Store {
	t.Helper()
	st, err := pgstore.Open(context.Background(), dsn, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	return st
}

// sql runs a statement in the test's schema, as the owner of everything.
func (s site) sql(t testing.TB, text string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), kit.Cluster(t).URL(s.database))
	require.NoError(t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(context.Background(), `SET search_path = `+s.schema)
	require.NoError(t, err)
	_, err = conn.Exec(context.Background(), text, args...)
	require.NoError(t, err)
}

// value reads one value.
func value[T any](t testing.TB, s site, text string, args ...any) T {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), kit.Cluster(t).URL(s.database))
	require.NoError(t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(context.Background(), `SET search_path = `+s.schema)
	require.NoError(t, err)
	var v T
	require.NoError(t, conn.QueryRow(context.Background(), text, args...).Scan(&v))
	return v
}

// advance lets d pass for all leases, by moving their ends.
func (s site) advance(t testing.TB, d time.Duration) {
	t.Helper()
	s.sql(t, `UPDATE instances SET until = until - $1::bigint * interval '1 microsecond'`, d.Microseconds())
}

var _ store.Full = (*pgstore.Store)(nil)
