package pgstore_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// The settings of the store can be part of any kind of address.
func TestSettingsInTheAddress(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st := open(t, s.dsn+"&lease=45s&give_up=250ms&lock_timeout=1s", nil)
	require.Equal(t, 45*time.Second, st.Info().LeaseTTL)

	words := fmt.Sprintf(`host=127.0.0.1 port=%d user=pg dbname = 'postgres' sslmode=disable application_name='it\'s' schema=%s lease='7s'`, kit.Cluster(t).Port(), s.schema)
	st = open(t, words, nil)
	require.Equal(t, 7*time.Second, st.Info().LeaseTTL)
	require.Contains(t, st.Info().Location, "schema="+s.schema)
	_, err := st.Quarantine(t.Context()) // keeps a connection
	require.NoError(t, err)
	require.Equal(t, 1, value[int](t, s, `SELECT least(count(*), 1)::int FROM pg_stat_activity WHERE application_name = 'it''s'`))

	for _, bad := range []string{"&lease=x", "&lease=1ms", "&give_up=5", "&lock_timeout=-1s", "&schema=No"} {
		_, err := pgstore.Open(t.Context(), strings.Split(s.dsn, "&schema")[0]+bad, nil)
		require.ErrorContains(t, err, "pgstore: ", bad)
	}
	where, err := pgstore.Location("schema=only_that host=h", nil)
	require.NoError(t, err)
	require.Contains(t, where, "schema=only_that")
}

// Names that SQL has for itself are names of schemas like others; what cannot be
// one, or is read differently by different tools, is refused before anything is
// connected to.
func TestNamesOfSchemas(t *testing.T) {
	t.Parallel()
	dsn, _ := bare(t)
	for _, schema := range []string{"select", "user", "a234567890123456789012345678901234567890123456789_"} {
		at := dsn + "&schema=" + schema
		t.Cleanup(func() {
			_ = kit.Cluster(t).Exec(context.Background(), `DROP ROLE "`+pgstore.RuntimeRole(schema)+`"`)
		})
		migrate(t, at, nil)
		migrate(t, at, nil)
		st := open(t, at, nil)
		me := join(t, st, "me")
		for i, part := range life(t.Context(), st, me.ID, newPlan("d")) {
			require.NoError(t, part(), "%s, part %d", schema, i)
		}
		for problem, err := range st.Check(t.Context()) {
			require.NoError(t, err)
			t.Error(problem)
		}
		require.NoError(t, st.Leave(t.Context(), me.ID))
		require.NoError(t, st.Close())
		m := migrator(t, at, nil)
		for range 2 {
			_, err := m.Down(t.Context(), 0)
			require.NoError(t, err)
			_, err = m.Up(t.Context(), 0)
			require.NoError(t, err)
		}
		_, err := m.Down(t.Context(), 0)
		require.NoError(t, err)
	}
	nowhere := "postgres://nobody@127.0.0.1:1/none?schema="
	for _, schema := range []string{"", "Sales", `a"b`, "a'b", "a.b", "a b", "1a", "_a", "a-b", "\u00e9", "pg_x", "pg_catalog", "information_schema", strings.Repeat("a", 51), strings.Repeat("a", 64)} {
		escaped := nowhere + url.PathEscape(schema)
		_, err := pgstore.Open(t.Context(), escaped, nil)
		require.ErrorContains(t, err, "schema", schema)
		require.NotErrorIs(t, err, pgstore.ErrUnreachable, schema)
		_, err = pgstore.NewMigrator(t.Context(), escaped, nil)
		require.NotErrorIs(t, err, pgstore.ErrUnreachable, schema)
		require.ErrorContains(t, err, "schema", schema)
		if schema != "" { // which is the default there
			_, err = pgstore.Migrations(&pgstore.Options{Schema: schema})
			require.Error(t, err, schema)
		}
	}
}

// Values with blanks and signs reach the server as they are, from every kind of
// address and from the one that is printed.
func TestValuesInTheAddress(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	const app, options = `a b+c%d&e='f"`, `-c work_mem=5MB -c application_name=not\ this -c search_path=x\,y`
	where := strings.Split(s.dsn, "&schema=")[0]
	forms := []string{
		where + "&schema=" + s.schema + "&application_name=" + percent(app) + "&options=" + percent(options),
		where + "&application_name=" + percent(app) + "&schema=" + s.schema + "&options=" + percent(options) + "&lease=7s",
		fmt.Sprintf(`host=127.0.0.1 port=%d user=pg dbname=postgres sslmode=disable schema=%s application_name='a b+c%%d&e=\'f"' options='-c work_mem=5MB -c application_name=not\\ this -c search_path=x\\,y'`, kit.Cluster(t).Port(), s.schema),
	}
	for _, dsn := range forms {
		printed, err := pgstore.Location(dsn, nil)
		require.NoError(t, err)
		require.NotContains(t, strings.ReplaceAll(printed, "%2B", ""), "+", "libpq takes it for a plus sign")
		for _, at := range []string{dsn, printed} {
			st := open(t, at, nil)
			var name, mem, path string
			require.NoError(t, st.Write(t.Context(), func(b *pgx.Batch) {
				b.Queue(`SELECT current_setting('application_name'), current_setting('work_mem'), current_setting('search_path')`).
					QueryRow(func(r pgx.Row) error { return r.Scan(&name, &mem, &path) })
			}), at)
			require.Equal(t, []string{app, "5MB", "x,y"}, []string{name, mem, path}, at)
			require.NoError(t, st.Close())
		}
	}
	plus, err := pgstore.Location(where+"&application_name=a+b", nil)
	require.NoError(t, err)
	require.Contains(t, plus, "application_name=a%2Bb", "a plus sign is a plus sign, as libpq has it")
}

// percent writes a value as libpq reads it in a URL.
func percent(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

// All servers that an address lists are in the one that is printed: the first of
// them is not the one that takes writes for ever.
func TestAnAddressOfSeveralServers(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://etl@a:5432,b:5433/db?target_session_attrs=read-write&schema=sales",
		"postgres://etl@/db?host=a,b&port=5432,5433&target_session_attrs=read-write&schema=sales",
		"host=a,b port=5432,5433 user=etl dbname=db target_session_attrs=read-write schema=sales",
	} {
		where, err := pgstore.Location(dsn, nil)
		require.NoError(t, err)
		require.Equal(t, "postgres://etl@/db?host=a,b&port=5432,5433&schema=sales&target_session_attrs=read-write", where)
		again, err := pgstore.Location(where, nil)
		require.NoError(t, err)
		require.Equal(t, where, again)
	}
	where, err := pgstore.Location("postgres://etl@[::1]:5433/db", nil)
	require.NoError(t, err)
	require.Equal(t, "postgres://etl@[::1]:5433/db?schema=commitstep", where)
}

// The address that messages print is one that can be given again, by whoever
// reads it: the same user and settings, and no password.
func TestThePrintedAddressWorks(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	for _, dsn := range []string{
		strings.Replace(s.dsn, "//pg@", "//pg:geheim@", 1) + "&lease=7s&pool_max_conns=3&sslpassword=geheim",
		fmt.Sprintf(`host=127.0.0.1 port=%d user=pg password='ge\'heim' dbname='postgres' sslmode=disable pool_max_conns=3 schema=%s lease='7s'`, kit.Cluster(t).Port(), s.schema),
	} {
		where, err := pgstore.Location(dsn, nil)
		require.NoError(t, err)
		require.NotContains(t, where, "heim")
		require.Contains(t, where, "//pg@127.0.0.1:")
		st := open(t, where, nil)
		require.Equal(t, 7*time.Second, st.Info().LeaseTTL)
		again, err := pgstore.Location(where, nil)
		require.NoError(t, err)
		require.Equal(t, where, again)
		require.Contains(t, where, "pool_max_conns=3")
		require.Equal(t, where, st.Info().Location)
		require.NotContains(t, st.Name(), "lease", "the store's own name is the same for all")
		require.NotContains(t, st.Name(), "pg@")
	}
}

// Lists of ids need types that the server tells. Modes without them are refused
// at once, and all others work.
func TestModesOfSendingStatements(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	for _, mode := range []string{"exec", "simple_protocol"} {
		_, err := pgstore.Open(t.Context(), s.dsn+"&default_query_exec_mode="+mode, nil)
		require.ErrorContains(t, err, "cache_describe", mode)
	}
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec"} {
		st := open(t, s.dsn+"&default_query_exec_mode="+mode, nil)
		me := join(t, st, "me")
		for i, part := range life(t.Context(), st, me.ID, newPlan(mode)) {
			require.NoError(t, part(), "%s, part %d", mode, i)
		}
	}
}

// A value that cannot be sent is an error at once, and nothing that stood before
// it in the transaction is written.
func TestAValueThatCannotBeSent(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	for _, mode := range []string{"cache_statement", "cache_describe"} {
		st := open(t, s.dsn+"&default_query_exec_mode="+mode, &pgstore.Options{GiveUp: time.Hour})
		err := st.Write(t.Context(), func(b *pgx.Batch) {
			b.Queue(`INSERT INTO `+s.schema+`.garbage (sequence) VALUES ($1)`, uuid.New())
			b.Queue(`SELECT $1::bigint`, struct{}{})
		})
		require.Error(t, err, mode)
		require.NotErrorIs(t, err, commitstep.ErrOutcomeUnknown, mode)
		require.NotErrorIs(t, err, pgstore.ErrUnreachable, mode)
		require.Zero(t, value[int](t, s, `SELECT count(*)::int FROM garbage`), mode)
		require.NoError(t, st.Write(t.Context(), func(b *pgx.Batch) { b.Queue(`SELECT 1`) }), "the next one goes on")
	}
}

// Sessions that the server ends because nobody used them are replaced.
func TestIdleSessionsThatTheServerEnds(t *testing.T) {
	t.Parallel()
	dsn, name := bare(t)
	migrate(t, dsn, nil)
	c := kit.Cluster(t)
	if err := c.Exec(t.Context(), "ALTER DATABASE "+name+" SET idle_session_timeout = '50ms'"); err != nil {
		t.Log("this server has no such setting:", err)
		return
	}
	s := site{dsn: dsn, direct: dsn, database: "postgres", schema: "public"}
	st := open(t, dsn, nil)
	me := join(t, st, "me")
	for i := range 3 {
		require.Eventually(t, func() bool {
			return value[int](t, s, `SELECT count(*)::int FROM pg_stat_activity WHERE datname = $1`, name) == 0
		}, time.Minute, 20*time.Millisecond)
		_, err := st.Put(t.Context(), newPlan(fmt.Sprint("d", i)).draft(), me.ID)
		require.NoError(t, err)
	}
}

// A server that only reads is waited for, since it may be promoted, and then
// called what it is. What only reads works on it.
func TestAServerThatOnlyReads(t *testing.T) {
	t.Parallel()
	dsn, name := bare(t)
	migrate(t, dsn, nil)
	require.NoError(t, kit.Cluster(t).Exec(t.Context(), "ALTER DATABASE "+name+" SET default_transaction_read_only = on"))
	st := open(t, dsn, &pgstore.Options{GiveUp: 50 * time.Millisecond})
	_, err := st.Join(t.Context(), commitstep.Instance{ID: uuid.New(), Name: "me"})
	require.ErrorIs(t, err, pgstore.ErrUnreachable)
	require.ErrorContains(t, err, "only reads")
	require.ErrorContains(t, err, "target_session_attrs")
	for _, err := range st.Scan(t.Context(), store.Filter{}) {
		require.NoError(t, err)
	}
}

func replaceUser(dsn, user string) string { return strings.Replace(dsn, "//pg@", "//"+user+"@", 1) }

// heard is a log that tells of its first line.
type heard struct {
	slog.Handler
	line chan string
}

func (h heard) Enabled(context.Context, slog.Level) bool { return true }
func (h heard) Handle(_ context.Context, r slog.Record) error {
	select {
	case h.line <- r.Message:
	default:
	}
	return nil
}
func (h heard) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h heard) WithGroup(string) slog.Handler      { return h }

// A store is opened once a server that is full has room.
func TestOpeningWaitsForAServerThatIsFull(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	c := kit.Cluster(t)
	role := kit.Name()
	require.NoError(t, c.Exec(t.Context(), fmt.Sprintf("CREATE ROLE %s LOGIN CONNECTION LIMIT 3; GRANT %s TO %s", role, pgstore.RuntimeRole(s.schema), role)))
	t.Cleanup(func() { _ = c.Exec(context.Background(), "DROP ROLE "+role) })
	dsn := replaceUser(s.dsn, role)
	var taken []*pgx.Conn
	for range 3 {
		conn, err := pgx.Connect(t.Context(), replaceUser(c.URL("postgres"), role))
		require.NoError(t, err)
		taken = append(taken, conn)
	}
	_, err := pgstore.Open(t.Context(), dsn, &pgstore.Options{GiveUp: time.Millisecond})
	require.ErrorIs(t, err, pgstore.ErrUnreachable)
	require.ErrorContains(t, err, "pool_max_conns")

	line := make(chan string, 1)
	done := make(chan error, 1)
	go func() {
		st, err := pgstore.Open(context.Background(), dsn, &pgstore.Options{MaxConns: 2, Log: slog.New(heard{line: line})})
		if err == nil {
			err = st.Close()
		}
		done <- err
	}()
	require.Contains(t, <-line, "takes no connection")
	for _, conn := range taken {
		require.NoError(t, conn.Close(context.Background()))
	}
	require.NoError(t, <-done)
}
