package pgstore_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/commitstep/engine/store/storetest"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// From a file into PostgreSQL, into another schema of it, and back into a file:
// nothing is lost on the way.
func TestCopyBetweenKindsOfStore(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	file := func(name string) *boltstore.Store {
		st, err := boltstore.Init(filepath.Join(t.TempDir(), name), nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, st.Close()) })
		return st
	}
	person := store.Person{Name: "op", Reason: "moves to a server"}
	a, d := file("a.db"), file("d.db")
	b, c := open(t, newSite(t, false).dsn, nil), open(t, newSite(t, true).dsn, nil)
	storetest.Fill(t, a)
	before := storetest.Content(t, a)
	_, err := store.Copy(ctx, a, b, "b", person)
	require.NoError(t, err)
	storetest.SameContent(t, a, b)
	_, err = store.Copy(ctx, b, c, "c", person)
	require.NoError(t, err)
	_, err = store.Copy(ctx, c, d, "d", person)
	require.NoError(t, err)
	after := storetest.Content(t, d)
	for k := range before {
		require.Equal(t, before[k], after[k], k)
	}
	require.Len(t, after, len(before))
	for _, st := range []store.Full{b, c, d} {
		for problem, err := range st.Check(ctx) {
			require.NoError(t, err)
			t.Errorf("%s: %s", st.Info().Location, problem)
		}
	}
}

// A file does not keep attempts of its own past sequences, but those that came
// from PostgreSQL stay in it, and go on with the next copy.
func TestAttemptsOfThePastAreCopied(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "commit.db")
	person := store.Person{Name: "op", Reason: "moves to a file"}
	s := newSite(t, false)
	a, c := open(t, s.dsn, nil), open(t, newSite(t, false).dsn, nil)
	storetest.Fill(t, a)
	require.Equal(t, 3, value[int](t, s, `SELECT count(DISTINCT a.sequence)::int FROM attempts a JOIN history h ON h.id = a.sequence WHERE job = 'j4'`))
	require.Equal(t, "done", value[string](t, s, `SELECT a.outcome FROM attempts a JOIN history h ON h.id = a.sequence WHERE job = 'j4' AND dataset = 'short' AND step = 0 AND number = 2`),
		"an outcome comes with the completion")
	b, err := boltstore.Init(path, nil)
	require.NoError(t, err)
	_, err = store.Copy(ctx, a, b, "b", person)
	require.NoError(t, err)
	before := storetest.Content(t, a)
	// Opened again, the file collects what nobody needs.
	for range 2 {
		require.NoError(t, b.Close())
		b, err = boltstore.Open(path, nil)
		require.NoError(t, err)
		for problem, err := range b.Check(ctx) {
			require.NoError(t, err)
			t.Error(problem)
		}
		inFile := storetest.Content(t, b)
		for k := range before {
			if strings.HasPrefix(k, "path ") {
				continue // not what this is about
			}
			require.Equal(t, before[k], inFile[k], k)
		}
	}
	_, err = store.Copy(ctx, b, c, "c", person)
	require.NoError(t, err)
	after := storetest.Content(t, c)
	pages := 0
	for k := range before {
		if strings.HasPrefix(k, "path ") {
			continue
		}
		require.Equal(t, before[k], after[k], k)
		if strings.HasPrefix(k, "attempts ") {
			pages++
		}
	}
	require.Equal(t, 5, pages)
	require.NoError(t, b.Close())
}

// Attempts of sequences that ended are rows of their own; they go with the
// history, and with it only.
func TestPruneTakesAttemptsAlong(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st := open(t, s.dsn, nil)
	me := join(t, st, "me")
	p := newPlan("d")
	for i, part := range life(t.Context(), st, me.ID, p) {
		require.NoError(t, part(), "part %d", i)
	}
	n, err := st.PruneHistory(t.Context(), time.Hour)
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = st.PruneHistory(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	for _, table := range []string{"history", "attempts", "documents", "progress", "step_notes"} {
		require.Zero(t, value[int](t, s, `SELECT count(*)::int FROM `+table), table)
	}
	require.Equal(t, 1, value[int](t, s, `SELECT count(*)::int FROM plan_ids`))
	require.Equal(t, 1, value[int](t, s, `SELECT count(*)::int FROM audit`))
}

// A live sequence that cannot be read ends an export, whether or not somebody
// has tried to read it before: a copy without it would let its dataset be
// ingested. Other damage does so too.
func TestADamagedSequenceIsNotLeftBehind(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, damage := range []string{
		`UPDATE documents SET header = set_byte(header, 20, 0)`,
		`UPDATE documents SET steps = set_byte(steps, 20, 0)`,
		`DELETE FROM documents`,
		`UPDATE watermarks SET record = set_byte(record, 20, 0)`,
	} {
		s := newSite(t, false)
		from := open(t, s.dsn, nil)
		to, err := boltstore.Init(filepath.Join(t.TempDir(), "commit.db"), nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, to.Close()) })
		me := join(t, from, "me")
		_, err = from.Put(ctx, newPlan("a").draft(), me.ID)
		require.NoError(t, err)
		person := store.Person{Name: "op", Reason: "moves to a file"}
		require.NoError(t, from.SetWatermark(ctx, newPlan("b").move, person))
		require.NoError(t, from.Leave(ctx, me.ID))
		s.sql(t, damage)
		for range 2 {
			var last error
			for _, err := range from.Export(ctx) {
				last = err
			}
			require.ErrorIs(t, last, commitstep.ErrDamaged, damage)
			_, err = store.Copy(ctx, from, to, "the file", person)
			require.ErrorIs(t, err, commitstep.ErrDamaged, damage)
			require.Empty(t, from.Info().SealedFor, "it can be repaired, and go on: %s", damage)
		}
	}
}

// A copy lasts as long as it takes: it is not bound by the time of a statement,
// and rows do not cost a turn of request and answer each.
func TestALargeCopyTakesItsTime(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	const paths = 20000
	s := newSite(t, false)
	o := &pgstore.Options{StatementTimeout: 500 * time.Millisecond, LockTimeout: 500 * time.Millisecond}
	st, proxy := behindProxy(t, s, o)
	before := 0
	done, err := st.Import(ctx, func(yield func(store.CopyItem, error) bool) {
		if !yield(store.CopyItem{Store: &store.CopyStore{ID: uuid.New(), Location: "a slow one"}}, nil) {
			return
		}
		before = proxy.RoundTrips()
		for i := range paths {
			if i == paths/2 {
				// Longer than any single transaction with these settings may last.
				select {
				case <-time.After(o.StatementTimeout + o.LockTimeout + 6*time.Second):
				case <-ctx.Done():
				}
			}
			if !yield(store.CopyItem{Path: &store.CopyPath{Path: commitstep.PathDigest(uuid.New()), Sequence: uuid.New()}}, nil) {
				return
			}
		}
	})
	require.NoError(t, err)
	require.False(t, done)
	require.Less(t, proxy.RoundTrips()-before, paths/50)
	require.Equal(t, paths, value[int](t, s, `SELECT count(*)::int FROM paths`))
	require.Empty(t, st.Info().Stamped)
}

// A copy of which an answer was lost, that to the stamp or the last one, is made
// once, and its caller hears so.
func TestAnAnswerToACopyIsLost(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 2; n++ {
		s := newSite(t, false)
		st, proxy := behindProxy(t, s, nil)
		from := uuid.New()
		lost := proxy.On(faultproxy.Rule{Match: func(m faultproxy.Message) bool { return bytes.Contains(m.Data, []byte("commit\x00")) }, Nth: n, Do: faultproxy.DropReply})
		items := func(yield func(store.CopyItem, error) bool) {
			_ = yield(store.CopyItem{Store: &store.CopyStore{ID: from, Location: "one"}}, nil) &&
				yield(store.CopyItem{Path: &store.CopyPath{Path: commitstep.PathDigest(uuid.New()), Sequence: uuid.New()}}, nil)
		}
		done, err := st.Import(t.Context(), items)
		require.NoError(t, err)
		require.False(t, done, "it is this call that made it")
		select {
		case <-lost.Fired():
		default:
			t.Fatal("no answer was lost")
		}
		require.Equal(t, 1, value[int](t, s, `SELECT count(*)::int FROM paths`))
		require.False(t, st.Info().Unfinished)
		done, err = st.Import(t.Context(), items)
		require.NoError(t, err)
		require.True(t, done, "made before")
	}
}

var _ storetest.Copyable = (*pgstore.Store)(nil)
