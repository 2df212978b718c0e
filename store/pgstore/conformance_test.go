package pgstore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/commitstep/engine/store/storetest"
	"github.com/stretchr/testify/require"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Exercise(t, harness(false))
}

// The same behind a pooler that gives every transaction another session.
func TestConformanceThroughPgBouncer(t *testing.T) {
	t.Parallel()
	storetest.Exercise(t, harness(true))
}

func BenchmarkStore(b *testing.B) {
	storetest.Benchmarks(b, harness(false).Open)
}

func harness(pooled bool) storetest.Harness {
	var sites sync.Map // *pgstore.Store -> site
	o := &pgstore.Options{MaxConns: 3}
	enter := func(t testing.TB, s site) store.Full {
		st := open(t, s.dsn, o)
		sites.Store(st, s)
		return st
	}
	at := func(st store.Full) site {
		s, _ := sites.Load(st)
		return s.(site)
	}
	return storetest.Harness{
		Shared: true,
		Open:   func(t testing.TB) store.Full { return enter(t, newSite(t, pooled)) },
		Reopen: func(t testing.TB, st store.Full) store.Full {
			require.NoError(t, st.Close())
			return enter(t, at(st))
		},
		Advance: func(t testing.TB, st store.Full, d time.Duration) { at(st).advance(t, d) },
		Copy:    func(t testing.TB, st store.Full) store.Full { return enter(t, at(st).restored(t)) },
		Seal: func(t testing.TB, st store.Full, target string) {
			require.NoError(t, st.(*pgstore.Store).Seal(t.Context(), target, store.Person{Name: "op", Reason: "copied elsewhere"}))
		},
	}
}
