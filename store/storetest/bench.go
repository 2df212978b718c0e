package storetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

// Benchmarks measures what every store must be fast at, so that the numbers of
// different stores can be laid side by side. Each iteration is one sequence.
func Benchmarks(b *testing.B, open func(t testing.TB) store.Full) {
	for _, n := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("PutComplete/inflight=%d", n), func(b *testing.B) {
			parallel(b, open, n, func(st store.Full, me uuid.UUID, i int64) error {
				l, err := st.Put(b.Context(), benchSpec(i).draft(), me)
				if err != nil {
					return err
				}
				return st.Complete(b.Context(), fence(l), false, store.HistoryNotes{Executed: 5})
			})
		})
	}
	b.Run("Record/inflight=16", func(b *testing.B) {
		parallel(b, open, 16, func(st store.Full, me uuid.UUID, i int64) error {
			l, err := st.Put(b.Context(), benchSpec(i).draft(), me)
			if err != nil {
				return err
			}
			return st.Record(b.Context(), fence(l), true, attempt(0, 1))
		})
	})
	b.Run("Recover", func(b *testing.B) {
		st, me := prepare(b, open)
		for i := range b.N {
			if _, err := st.Put(b.Context(), benchSpec(int64(i)).draft(), me); err != nil {
				b.Fatal(err)
			}
		}
		if err := st.Leave(b.Context(), me); err != nil {
			b.Fatal(err)
		}
		me = joinBench(b, st)
		work := make(chan commitstep.Live)
		b.ResetTimer()
		ended := make(chan error)
		for range 64 {
			go func() {
				var err error
				for l := range work {
					if err == nil {
						_, err = st.Steps(b.Context(), l.ID, 0)
					}
					if err == nil {
						err = st.Record(b.Context(), fence(l), true, attempt(0, 1))
					}
					if err == nil {
						err = st.Complete(b.Context(), fence(l), false, store.HistoryNotes{Executed: 5})
					}
				}
				ended <- err
			}()
		}
		f := store.ClaimFilter{Limit: 64}
		for {
			part, err := st.Claim(b.Context(), me, f)
			if err != nil {
				b.Fatal(err)
			}
			if len(part) == 0 {
				break
			}
			for _, l := range part {
				work <- l
			}
			f.After = &part[len(part)-1].Key
		}
		close(work)
		for range 64 {
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "sequences/s")
	})
	b.Run("LongPut", func(b *testing.B) {
		st, me := prepare(b, open)
		const steps = 100_000
		b.ResetTimer()
		for i := range b.N {
			q := seqSpec{key: key("j", fmt.Sprint(i)), steps: steps}.withDefaults()
			l, err := st.Put(b.Context(), q.draft(), me)
			if err != nil {
				b.Fatal(err)
			}
			for p := 0; p*store.PageSize < steps; p++ {
				page, err := st.Steps(b.Context(), l.ID, p)
				if err != nil {
					b.Fatal(err)
				}
				events := make([]store.Event, len(page.Steps))
				for i, s := range page.Steps {
					events[i] = done(s.Index)
				}
				if err := st.Record(b.Context(), fence(l), false, events...); err != nil {
					b.Fatal(err)
				}
			}
			if err := st.Complete(b.Context(), fence(l), false, store.HistoryNotes{}); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N)*steps/b.Elapsed().Seconds(), "steps/s")
	})
}

func benchSpec(i int64) seqSpec {
	return seqSpec{key: key("bench", fmt.Sprintf("dataset-%09d", i)), steps: 5, hash: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}.withDefaults()
}

func prepare(b *testing.B, open func(t testing.TB) store.Full) (store.Full, uuid.UUID) {
	b.Helper()
	b.ReportAllocs()
	st := open(b)
	return st, joinBench(b, st)
}

func joinBench(b *testing.B, st store.Full) uuid.UUID {
	b.Helper()
	me := commitstep.Instance{ID: uuid.New(), Name: "bench"}
	if _, err := st.Join(b.Context(), me); err != nil {
		b.Fatal(err)
	}
	// A driver's heartbeat: a benchmark may run for longer than a lease.
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(max(st.Info().LeaseTTL/6, time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				// A lease that the benchmark itself ended stays ended.
				_, _ = st.Renew(context.Background(), me.ID)
			}
		}
	}()
	b.Cleanup(func() { close(stop); <-ended })
	return me.ID
}

func parallel(b *testing.B, open func(t testing.TB) store.Full, n int, one func(st store.Full, me uuid.UUID, i int64) error) {
	st, me := prepare(b, open)
	var next atomic.Int64
	ended := make(chan error)
	b.ResetTimer()
	for range n {
		go func() {
			for {
				i := next.Add(1)
				if i > int64(b.N) {
					ended <- nil
					return
				}
				if err := one(st, me, i); err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	for range n {
		if err := <-ended; err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "sequences/s")
}
