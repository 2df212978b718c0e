package pgtarget_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/testkit/pgkit"
	"github.com/commitstep/engine/steps/steptest"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/steps/watermark/pgtarget"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

var kit pgkit.Kit

func TestMain(m *testing.M) {
	code := kit.Run(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

var topic = commitstep.WatermarkKey{Job: "kafka-hdfs", Source: "MyTopic:0"}

var columns = pgtarget.Columns{Job: "job", Source: "source", Value: "pos", Token: "token", Epoch: "epoch", UpdatedAt: "at", Sequence: "seq"}

type table struct {
	t    testing.TB
	name string
	cfg  pgtarget.Config
}

// newTable makes a table in a schema of its own.
func newTable(t testing.TB, definition string, c pgtarget.Columns) *table {
	t.Helper()
	cl := kit.Cluster(t)
	schema := kit.Name()
	require.NoError(t, cl.Exec(context.Background(), "CREATE SCHEMA "+schema+"; CREATE TABLE "+schema+".marks ("+definition+")"))
	return &table{t: t, name: schema + ".marks", cfg: pgtarget.Config{Name: "marks", DSN: cl.URL("postgres"), Table: schema + ".marks", Columns: c}}
}

const full = `job text, source text, pos bigint, epoch bigint, token uuid, at timestamptz, seq uuid, note text DEFAULT 'kept', PRIMARY KEY (source, job)`

func (tb *table) open() *pgtarget.Target {
	tb.t.Helper()
	tg, err := pgtarget.Open(context.Background(), tb.cfg)
	require.NoError(tb.t, err)
	tb.t.Cleanup(func() { require.NoError(tb.t, tg.Close()) })
	return tg
}

func (tb *table) sql(text string, args ...any) error {
	conn, err := pgx.Connect(context.Background(), kit.Cluster(tb.t).URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(context.Background(), fmt.Sprintf(text, tb.name), args...)
	return err
}

func (tb *table) dump() (string, error) {
	conn, err := pgx.Connect(context.Background(), kit.Cluster(tb.t).URL("postgres"))
	if err != nil {
		return "", err
	}
	defer conn.Close(context.Background())
	var s string
	err = conn.QueryRow(context.Background(), fmt.Sprintf("SELECT coalesce(json_agg(m ORDER BY source)::text, '') FROM %s m", tb.name)).Scan(&s)
	return s, err
}

// seamed counts the moves, and lets a test kill around them.
type seamed struct {
	*pgtarget.Target
	points *steptest.Points
	moves  *int
}

func (s seamed) CompareAndSet(ctx context.Context, m commitstep.WatermarkMove, sequence uuid.UUID) error {
	before, berr := s.Target.Watermark(ctx, m.WatermarkKey)
	var out error
	err := s.points.Do("compare and set", func() error {
		out = s.Target.CompareAndSet(ctx, m, sequence)
		if after, err := s.Target.Watermark(ctx, m.WatermarkKey); out == nil && err == nil && (berr != nil || after.Token != before.Token) {
			*s.moves++
		}
		return out
	})
	return err
}

func TestKit(t *testing.T) {
	t.Parallel()
	steptest.Run(t, steptest.Case{New: func(t testing.TB) steptest.World {
		tb := newTable(t, full, columns)
		require.NoError(t, tb.sql(`INSERT INTO %s (job, source, pos, epoch, token) VALUES ('kafka-hdfs', 'MyTopic:0', 100, 0, gen_random_uuid())`))
		points, moves := &steptest.Points{}, 0
		tg := tb.open()
		by := func(pos, epoch int) func() error {
			return func() error {
				return tb.sql(`UPDATE %s SET pos = $1, epoch = $2, token = gen_random_uuid()`, pos, epoch)
			}
		}
		return steptest.World{
			Spec: watermark.Set(topic.Source, commitstep.Int(100), commitstep.Int(200), watermark.In("marks")),
			Key:  commitstep.Key{Job: topic.Job, Dataset: "MyTopic"},
			Kinds: func() *commitstep.Registry {
				return commitstep.NewRegistry(watermark.Kind(nil, seamed{tg, points, &moves}))
			},
			Snapshot: tb.dump,
			Effects:  func() (int, error) { return moves, nil },
			Points:   points,
			Foreign:  map[string]func() error{"further ahead": by(250, 0), "turned back": by(90, 0), "the same value of another": by(200, 0), "a recreated source": by(0, 1)},
			MovedOn:  by(300, 0),
		}
	}})
}

func move(from, to commitstep.Watermark) commitstep.WatermarkMove {
	return commitstep.WatermarkMove{WatermarkKey: topic, From: from, To: to, Token: uuid.New()}
}

func TestMovesOfEveryKind(t *testing.T) {
	t.Parallel()
	tb := newTable(t, full, columns)
	tg := tb.open()
	ctx := t.Context()
	_, err := tg.Watermark(ctx, topic)
	require.ErrorIs(t, err, commitstep.ErrNotFound)
	sequence := uuid.New()
	first := move(commitstep.None(), commitstep.Int(100))
	for range 2 { // a repetition is success
		require.NoError(t, tg.CompareAndSet(ctx, first, sequence))
	}
	v, err := tg.Watermark(ctx, topic)
	require.NoError(t, err)
	require.Equal(t, commitstep.Int(100), v.Watermark)
	require.Equal(t, first.Token, v.Token)
	require.Equal(t, sequence, v.Sequence)
	require.False(t, v.SetAt.IsZero())
	for _, m := range []commitstep.WatermarkMove{move(commitstep.None(), commitstep.Int(1)), move(commitstep.Int(80), commitstep.Int(90)), move(commitstep.Int(100).InEpoch(1), commitstep.Int(5).InEpoch(2))} {
		err := tg.CompareAndSet(ctx, m, sequence)
		require.ErrorIs(t, err, commitstep.ErrStale)
		require.Equal(t, commitstep.ClassRefused, commitstep.ClassOf(err))
		require.ErrorContains(t, err, "100")
	}
	require.NoError(t, tg.CompareAndSet(ctx, move(commitstep.Int(100), commitstep.Int(3).InEpoch(1)), sequence))
	require.NoError(t, tg.CompareAndSet(ctx, move(commitstep.Int(3).InEpoch(1), commitstep.Int(4).InEpoch(1)), sequence))
	err = tg.CompareAndSet(ctx, move(commitstep.Int(4).InEpoch(1), commitstep.Text("x").InEpoch(2)), sequence)
	require.True(t, commitstep.IsPermanent(err), "%v", err)
	dump, err := tb.dump()
	require.NoError(t, err)
	require.Contains(t, dump, `"note":"kept"`, "columns of the user's are left alone")
	// A row that somebody made ready, without a value, was never read.
	require.NoError(t, tb.sql(`UPDATE %s SET pos = NULL, token = NULL`))
	_, err = tg.Watermark(ctx, topic)
	require.ErrorIs(t, err, commitstep.ErrNotFound)
	require.NoError(t, tg.CompareAndSet(ctx, move(commitstep.None(), commitstep.Int(7)), sequence))
}

func TestTextsAndASmallTable(t *testing.T) {
	t.Parallel()
	tb := newTable(t, `"Source name" text UNIQUE, v varchar, token text`, pgtarget.Columns{Source: "Source name", Value: "v", Token: "token"})
	tg := tb.open()
	require.NoError(t, tg.CompareAndSet(t.Context(), move(commitstep.None(), commitstep.Text("2015-12-09")), uuid.New()))
	require.NoError(t, tg.CompareAndSet(t.Context(), move(commitstep.Text("2015-12-09"), commitstep.Text("2015-12-10")), uuid.New()))
	v, err := tg.Watermark(t.Context(), topic)
	require.NoError(t, err)
	require.Equal(t, commitstep.Text("2015-12-10"), v.Watermark)
	require.True(t, commitstep.IsPermanent(tg.CompareAndSet(t.Context(), move(commitstep.Text("2015-12-10"), commitstep.Text("a").InEpoch(1)), uuid.New())), "there is no epoch column")
}

func TestTablesThatWillNotDo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		definition string
		columns    pgtarget.Columns
		want       string
	}{
		"no token column":        {`source text PRIMARY KEY, v bigint`, pgtarget.Columns{Source: "source", Value: "v"}, "token column"},
		"token column not there": {`source text PRIMARY KEY, v bigint`, pgtarget.Columns{Source: "source", Value: "v", Token: "token"}, `no column "token"`},
		"no unique key":          {`source text, v bigint, token uuid`, pgtarget.Columns{Source: "source", Value: "v", Token: "token"}, "unique key"},
		"a key of more":          {`source text, v bigint, token uuid, x int, UNIQUE (source, x)`, pgtarget.Columns{Source: "source", Value: "v", Token: "token"}, "unique key"},
		"a key of less":          {`source text, job text, v bigint, token uuid, UNIQUE (source)`, pgtarget.Columns{Job: "job", Source: "source", Value: "v", Token: "token"}, "unique key"},
		"a value of odd type":    {`source text PRIMARY KEY, v float8, token uuid`, pgtarget.Columns{Source: "source", Value: "v", Token: "token"}, "float8"},
	} {
		tb := newTable(t, c.definition, c.columns)
		_, err := pgtarget.Open(t.Context(), tb.cfg)
		require.ErrorContains(t, err, c.want, name)
	}
	_, err := pgtarget.Open(t.Context(), pgtarget.Config{Name: "m", DSN: kit.Cluster(t).URL("postgres"), Table: "public.nothing", Columns: columns})
	require.ErrorContains(t, err, "no such table")
	_, err = pgtarget.Open(t.Context(), pgtarget.Config{Name: "m", DSN: "postgres://u:geheim@h:x/", Table: "public.nothing", Columns: columns})
	require.Error(t, err)
	require.NotContains(t, err.Error(), "geheim")
	for column, c := range map[string]pgtarget.Columns{
		"pos":    {Source: "source", Value: "pos", Token: "pos"},
		"source": {Job: "source", Source: "source", Value: "pos", Token: "token"},
		"seq":    {Source: "source", Value: "pos", Token: "token", UpdatedAt: "seq", Sequence: "seq"},
	} { // before anything is connected to
		_, err = pgtarget.Open(t.Context(), pgtarget.Config{Name: "m", DSN: "postgres://127.0.0.1:1/db", Table: "public.marks", Columns: c})
		require.ErrorContains(t, err, fmt.Sprintf("column %q is named for two purposes", column))
	}
	// Which table a name alone means, sessions behind a pooler leave to one another.
	for _, table := range []string{"", "marks", ".marks", "marks.", "db.public.marks"} {
		_, err = pgtarget.Open(t.Context(), pgtarget.Config{Name: "m", DSN: kit.Cluster(t).URL("postgres"), Table: table, Columns: columns})
		require.ErrorContains(t, err, "write the table with its schema, as public.positions", table)
	}
}

// The answer is lost: the outcome is unknown, and the next look tells it.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	tb := newTable(t, full, columns)
	server := fmt.Sprintf("127.0.0.1:%d", kit.Cluster(t).Port())
	proxy, err := faultproxy.Listen(server, faultproxy.PostgreSQL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	tb.cfg.DSN = strings.Replace(tb.cfg.DSN, server, proxy.Addr(), 1)
	tg := tb.open()
	at := commitstep.Int(1)
	require.NoError(t, tg.CompareAndSet(t.Context(), move(commitstep.None(), at), uuid.New()))
	require.NoError(t, tg.CompareAndSet(t.Context(), move(at, commitstep.Int(2)), uuid.New()))
	at = commitstep.Int(2)
	for n := range 6 {
		m := move(at, commitstep.Int(int64(n+3)))
		var bound atomic.Bool // what came before only asked for types
		h := proxy.On(faultproxy.Rule{Match: func(m faultproxy.Message) bool {
			if m.Type == 'B' {
				bound.Store(true)
			}
			return bound.Load() && m.Type == 'S'
		}, Nth: 1, Do: []faultproxy.Action{faultproxy.DropBefore, faultproxy.DropReply}[n%2]})
		err := tg.CompareAndSet(t.Context(), m, uuid.New())
		<-h.Fired()
		proxy.Clear()
		require.Error(t, err)
		require.Equal(t, commitstep.ClassUnknown, commitstep.ClassOf(err), "%v", err)
		v, err := tg.Watermark(t.Context(), topic)
		require.NoError(t, err)
		switch m.Judge(v.Watermark, v.Token).Outcome {
		case commitstep.Done:
			at = m.To
		case commitstep.NotDone:
			require.NoError(t, tg.CompareAndSet(t.Context(), m, uuid.New()))
			at = m.To
		default:
			t.Fatalf("stands at %s", v.Watermark)
		}
	}
}

// Of many that move from the same value one wins.
func TestRacersMoveOnce(t *testing.T) {
	t.Parallel()
	tb := newTable(t, full, columns)
	tg := tb.open()
	from := commitstep.None()
	for round := range 10 {
		var wg sync.WaitGroup
		won := make(chan error, 8)
		for i := range 8 {
			wg.Go(func() {
				won <- tg.CompareAndSet(context.Background(), move(from, commitstep.Int(int64(round*100+i+1))), uuid.New())
			})
		}
		wg.Wait()
		close(won)
		n := 0
		for err := range won {
			if err == nil {
				n++
			} else {
				require.True(t, errors.Is(err, commitstep.ErrStale), "%v", err)
			}
		}
		require.Equal(t, 1, n)
		v, err := tg.Watermark(t.Context(), topic)
		require.NoError(t, err)
		from = v.Watermark
	}
}
