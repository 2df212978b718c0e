package boltstore

import (
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/storetest"
	"github.com/stretchr/testify/require"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	clocks := map[string]*fakeClock{} // by path
	clock := func(path string) *fakeClock {
		mu.Lock()
		defer mu.Unlock()
		if clocks[path] == nil {
			clocks[path] = newFakeClock()
		}
		return clocks[path]
	}
	storetest.Exercise(t, storetest.Harness{
		Open: func(t testing.TB) store.Full {
			path := filepath.Join(t.TempDir(), "commit.db")
			s, err := Init(path, &Options{Clock: clock(path)})
			require.NoError(t, err)
			closeChecked(t, s)
			return s
		},
		Reopen: func(t testing.TB, st store.Full) store.Full {
			path := st.(*Store).path
			require.NoError(t, st.Close())
			return openStore(t, path, &Options{Clock: clock(path)})
		},
		Advance: func(_ testing.TB, st store.Full, d time.Duration) { clock(st.(*Store).path).advance(d) },
		Copy: func(t testing.TB, st store.Full) store.Full {
			path := st.(*Store).path + ".copy"
			require.NoError(t, st.Backup(t.Context(), path))
			return openStore(t, path, &Options{Clock: clock(path)})
		},
		Seal: func(t testing.TB, st store.Full, target string) {
			require.NoError(t, st.(*Store).Seal(t.Context(), target, somebody))
		},
	})
}
