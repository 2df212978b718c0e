package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/commitstep/engine/bench/figures"
	"go.etcd.io/bbolt"
)

// recordBytes is how much the embedded store keeps of one of our datasets: the
// size of its live record, read from a store that holds exactly one.
func (b *bench) recordBytes() (int, error) {
	path := filepath.Join(b.dir, "probe.db")
	defer os.Remove(path)
	if err := child("pending", path, 1); err != nil {
		return 0, err
	}
	db, err := bbolt.Open(path, 0o644, &bbolt.Options{Timeout: time.Second, ReadOnly: true})
	if err != nil {
		return 0, err
	}
	defer db.Close()
	size := 0
	err = db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("live")).ForEach(func(k, v []byte) error { size += len(k) + len(v); return nil })
	})
	if err == nil && size == 0 {
		err = fmt.Errorf("the probe store holds nothing")
	}
	return size, err
}

func (b *bench) publish() error {
	size, err := b.recordBytes()
	if err != nil {
		return err
	}
	value := bytes.Repeat([]byte("v"), size-16)
	fmt.Fprintf(os.Stderr, "bench: a dataset of five steps keeps %d bytes\n", size)
	for _, c := range []struct {
		workers, n int
		bar        float64
	}{{16, 20_000, 3000}, {64, 40_000, 6000}} {
		n := int(float64(c.n) * b.scale)
		floor := func(round int) (float64, error) {
			f, err := newBareBolt(b.dir, fmt.Sprintf("floor-%d.db", round))
			if err != nil {
				return 0, err
			}
			took, err := figures.InFlight(n, c.workers, func(int) error { return f.dataset(b.ctx, timeKey(), value) })
			return b.rate(n, took, err, f.close, f.db.Path())
		}
		engine := func(round int) (float64, error) {
			m, err := newMachine(b.dir, fmt.Sprintf("engine-%d.db", round))
			if err != nil {
				return 0, err
			}
			took, err := figures.InFlight(n, c.workers, func(i int) error { _, err := m.e.Publish(b.ctx, fiveSteps("bench", i)); return err })
			return b.rate(n, took, err, func() error { return m.close(b.ctx) }, filepath.Join(b.dir, fmt.Sprintf("engine-%d.db", round)))
		}
		f, e, ratio, err := b.pair(floor, engine)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("publish, 5 no-op steps, %d in flight", c.workers)
		b.add(figures.Row{Name: name, Value: e, Unit: "datasets/s", Floor: f, Ratio: ratio, Bar: ">= 0.6 of B", Ok: figures.Judged(ratio >= 0.6)})
		b.add(figures.Row{Name: name, Value: e, Unit: "datasets/s", Bar: fmt.Sprintf(">= %.0f/s", c.bar), Ok: b.absolute(e >= c.bar)})
		l, err := b.appendFloor(n, c.workers, value)
		if err != nil {
			return err
		}
		b.add(figures.Row{Name: name + ", beside an append-only log", Value: e, Unit: "datasets/s", Floor: l, Ratio: e / l, Bar: "none (L)"})
	}
	return b.single(value)
}

func (b *bench) rate(n int, took time.Duration, err error, end func() error, path string) (float64, error) {
	if cerr := end(); err == nil {
		err = cerr
	}
	os.Remove(path)
	return float64(n) / took.Seconds(), err
}

func (b *bench) appendFloor(n, workers int, value []byte) (float64, error) {
	l, err := newAppendLog(b.dir, "floor.log")
	if err != nil {
		return 0, err
	}
	took, err := figures.InFlight(n, workers, func(int) error { return l.dataset(b.ctx, value, value[:64]) })
	return b.rate(n, took, err, l.close, l.f.Name())
}

// single is one dataset at a time: the median latency beside the floor's.
func (b *bench) single(value []byte) error {
	n := int(1000 * b.scale)
	p50 := func(fn func(i int) error) (float64, error) {
		var mu sync.Mutex
		var took []float64
		_, err := figures.InFlight(n, 1, func(i int) error {
			start := time.Now()
			err := fn(i)
			mu.Lock()
			took = append(took, time.Since(start).Seconds()*1000)
			mu.Unlock()
			return err
		})
		return figures.Median(took), err
	}
	floor := func(round int) (float64, error) {
		f, err := newBareBolt(b.dir, "single-floor.db")
		if err != nil {
			return 0, err
		}
		defer os.Remove(f.db.Path())
		v, err := p50(func(int) error { return f.dataset(b.ctx, timeKey(), value) })
		if cerr := f.close(); err == nil {
			err = cerr
		}
		return v, err
	}
	engine := func(round int) (float64, error) {
		m, err := newMachine(b.dir, "single.db")
		if err != nil {
			return 0, err
		}
		defer os.Remove(filepath.Join(b.dir, "single.db"))
		v, err := p50(func(i int) error { _, err := m.e.Publish(b.ctx, fiveSteps("bench", i)); return err })
		if cerr := m.close(b.ctx); err == nil {
			err = cerr
		}
		return v, err
	}
	f, e, ratio, err := b.pair(floor, engine)
	if err != nil {
		return err
	}
	b.add(figures.Row{Name: "publish, one dataset at a time, p50", Value: e, Unit: "ms", Floor: f, Ratio: ratio, Bar: "<= 1.5x of B", Ok: figures.Judged(ratio <= 1.5)})
	return nil
}
