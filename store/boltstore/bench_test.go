package boltstore

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/batch"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/internal/records"
	"github.com/commitstep/engine/store/storetest"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

func BenchmarkStore(b *testing.B) {
	storetest.Benchmarks(b, func(t testing.TB) store.Full {
		s, err := Init(filepath.Join(t.TempDir(), "commit.db"), nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		return s
	})
}

// BenchmarkFloor is the least that a durable put and delete of the same bytes
// can cost: bbolt alone, the same group commit, no checks, no history.
func BenchmarkFloor(b *testing.B) {
	for _, n := range []int{16, 64} {
		b.Run(fmt.Sprintf("inflight=%d", n), func(b *testing.B) { floor(b, n) })
	}
}

// BenchmarkAgainstFloor interleaves both, so that what else the machine does
// hits both, and reports the ratio.
func BenchmarkAgainstFloor(b *testing.B) {
	for _, n := range []int{16, 64} {
		b.Run(fmt.Sprintf("inflight=%d", n), func(b *testing.B) {
			var ours, bare time.Duration
			for range b.N {
				bare += floorRun(b, n, 4000)
				ours += ourRun(b, n, 4000)
			}
			b.ReportMetric(bare.Seconds()/ours.Seconds(), "of-floor")
			b.ReportMetric(float64(b.N)*4000/ours.Seconds(), "sequences/s")
		})
	}
}

func floor(b *testing.B, inflight int) {
	b.StopTimer()
	took := floorRun(b, inflight, b.N)
	b.ReportMetric(float64(b.N)/took.Seconds(), "sequences/s")
}

func inParallel(b *testing.B, inflight, total int, one func(i int64) error) time.Duration {
	b.Helper()
	var next atomic.Int64
	ended := make(chan error, inflight)
	start := time.Now()
	for range inflight {
		go func() {
			for {
				i := next.Add(1)
				if i > int64(total) {
					ended <- nil
					return
				}
				if err := one(i); err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	for range inflight {
		require.NoError(b, <-ended)
	}
	return time.Since(start)
}

type bareOp struct {
	key, value []byte
}

func floorRun(b *testing.B, inflight, total int) time.Duration {
	b.Helper()
	db, err := bbolt.Open(filepath.Join(b.TempDir(), "floor.db"), 0o600, &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, NoStatistics: true})
	require.NoError(b, err)
	defer func() { require.NoError(b, db.Close()) }()
	require.NoError(b, db.Update(func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("b")); return err }))
	q := batch.New(batch.Options{Rejoin: Rejoin}, func(ops []bareOp, results []error) {
		err := db.Update(func(tx *bbolt.Tx) error {
			bkt := tx.Bucket([]byte("b"))
			for _, o := range ops {
				var err error
				if o.value == nil {
					err = bkt.Delete(o.key)
				} else {
					err = bkt.Put(o.key, o.value)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		for i := range results {
			results[i] = err
		}
	})
	defer q.Close()
	return inParallel(b, inflight, total, func(i int64) error {
		d := draft(dataset(fmt.Sprintf("dataset-%09d", i)), 5, nil)
		p := &putting{d: d, buf: new([]byte)}
		if err := p.readPages(context.Background()); err != nil {
			return err
		}
		h, _ := d.Header()
		if err := p.setHeader(h); err != nil {
			return err
		}
		if err := q.Do(context.Background(), bareOp{liveKey(d.Key), p.record}); err != nil {
			return err
		}
		return q.Do(context.Background(), bareOp{key: liveKey(d.Key)})
	})
}

func ourRun(b *testing.B, inflight, total int) time.Duration {
	b.Helper()
	s, err := Init(filepath.Join(b.TempDir(), "commit.db"), nil)
	require.NoError(b, err)
	defer func() { require.NoError(b, s.Close()) }()
	in := commitstep.Instance{ID: uuid.New()}
	_, err = s.Join(context.Background(), in)
	require.NoError(b, err)
	return inParallel(b, inflight, total, func(i int64) error {
		l, err := s.Put(context.Background(), draft(dataset(fmt.Sprintf("dataset-%09d", i)), 5, nil), in.ID)
		if err != nil {
			return err
		}
		return s.Complete(context.Background(), fenceOf(l), false, store.HistoryNotes{Executed: 5})
	})
}

// BenchmarkOpen measures opening a large file, with its verification. The
// file's size comes from COMMITSTEP_BENCH_OPEN_MIB (default 64), most of it
// history, as in a store that has run for long. See docs/adr/0002.
func BenchmarkOpen(b *testing.B) {
	mib := 64
	if v := os.Getenv("COMMITSTEP_BENCH_OPEN_MIB"); v != "" {
		_, err := fmt.Sscan(v, &mib)
		require.NoError(b, err)
	}
	path := filepath.Join(b.TempDir(), "large.db")
	s, err := Init(path, nil)
	require.NoError(b, err)
	fillHistory(b, s, int64(mib)<<20)
	require.NoError(b, s.Close())
	fi, err := os.Stat(path)
	require.NoError(b, err)
	b.Run("store", func(b *testing.B) {
		for range b.N {
			s, err := Open(path, nil)
			require.NoError(b, err)
			require.NoError(b, s.Close())
		}
		b.SetBytes(fi.Size())
	})
	b.Run("verify", func(b *testing.B) {
		f, err := os.Open(path)
		require.NoError(b, err)
		defer f.Close()
		for range b.N {
			_, err := readIndex(f, fi.Size())
			require.NoError(b, err)
		}
		b.SetBytes(fi.Size())
	})
	for name, o := range map[string]*bbolt.Options{
		"bbolt free pages by walking": {NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
		"bbolt free pages stored":     {FreelistType: bbolt.FreelistMapType},
	} {
		b.Run(name, func(b *testing.B) {
			copied := filepath.Join(b.TempDir(), "copy.db")
			data, err := os.ReadFile(path)
			require.NoError(b, err)
			require.NoError(b, os.WriteFile(copied, data, 0o600))
			for i := range b.N + 1 {
				if i == 1 {
					b.ResetTimer() // the first open brings the file into the form
				}
				db, err := bbolt.Open(copied, 0o600, o)
				require.NoError(b, err)
				require.NoError(b, db.Close())
			}
		})
	}
}

// fillHistory appends outcomes of 5-step sequences until the file is large.
func fillHistory(b *testing.B, s *Store, size int64) {
	b.Helper()
	for {
		fi, err := os.Stat(s.path)
		require.NoError(b, err)
		if fi.Size() >= size {
			return
		}
		require.NoError(b, s.write(context.Background(), func(t *txn) error {
			for range 2000 {
				id := uuid.Must(uuid.NewV7())
				h, _ := json.Marshal(commitstep.Header{ID: id, Key: dataset(id.String()), PlanHash: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", Created: time.Now(), Steps: 5, Stages: 2, FirstWatermark: -1})
				var steps []commitstep.Step
				for range 5 {
					steps = append(steps, commitstep.Step{Kind: "fs.rename", Version: 1, Params: json.RawMessage(`{"from":"file:///data/task-output/run-17/MyTopic/2015-12-09/1.avro","to":"file:///data/job-output/MyTopic/2015-12-09/1.avro"}`)})
				}
				detail, _ := records.AppendSteps(nil, steps)
				rec, _ := encodeHistory(h, detail, records.HistoryTail{State: commitstep.Completed, Ended: time.Now(), Epoch: 1})
				t.put(tabHistory, id[:], commitstep.Seal(commitstep.RecordHistory, id[:], rec))
			}
			return nil
		}))
	}
}

// BenchmarkCommitWithFreePages measures one commit of a small put in a file of
// COMMITSTEP_BENCH_OPEN_MIB of which half is free, with the list of free pages
// stored at every commit or not.
func BenchmarkCommitWithFreePages(b *testing.B) {
	mib := 64
	if v := os.Getenv("COMMITSTEP_BENCH_OPEN_MIB"); v != "" {
		_, err := fmt.Sscan(v, &mib)
		require.NoError(b, err)
	}
	for _, stored := range []bool{false, true} {
		b.Run(fmt.Sprintf("stored=%v", stored), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "large.db")
			s, err := Init(path, nil)
			require.NoError(b, err)
			fillHistory(b, s, int64(mib)<<20)
			require.NoError(b, s.Close())
			db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: !stored, FreelistType: bbolt.FreelistMapType})
			require.NoError(b, err)
			defer func() { require.NoError(b, db.Close()) }()
			require.NoError(b, db.Update(func(tx *bbolt.Tx) error {
				c := tx.Bucket([]byte("history")).Cursor()
				n := 0
				for k, _ := c.First(); k != nil; k, _ = c.Next() {
					if n++; n/20%2 == 0 {
						if err := c.Delete(); err != nil {
							return err
						}
					}
				}
				return nil
			}))
			value := make([]byte, 1000)
			b.ResetTimer()
			for i := range b.N {
				require.NoError(b, db.Update(func(tx *bbolt.Tx) error {
					return tx.Bucket([]byte("live")).Put([]byte(fmt.Sprint(i%100)), value)
				}))
			}
		})
	}
}
