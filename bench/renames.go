package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/commitstep/engine/bench/figures"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/internal/batch"
	"github.com/commitstep/engine/steps/fsremove"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store/boltstore"
	"golang.org/x/sys/unix"
)

// renames is the real work: three files and two watermarks per dataset,
// beside floor R: a bare loop that makes the same file syncs, renames and
// directory syncs, and two group syncs.
func (b *bench) renames() error {
	n, workers := int(2000*b.scale), 16
	floor := func(round int) (float64, error) {
		root := filepath.Join(b.dir, fmt.Sprintf("bare-%d", round))
		defer os.RemoveAll(root)
		if err := stage(root, n); err != nil {
			return 0, err
		}
		path := filepath.Join(b.dir, "bare.log")
		defer os.Remove(path)
		q, end, err := newBareLog(path)
		if err != nil {
			return 0, err
		}
		took, err := figures.InFlight(n, workers, func(i int) error { return bareDataset(b.ctx, q, root, i) })
		if cerr := end(); err == nil {
			err = cerr
		}
		return float64(n) / took.Seconds(), err
	}
	engine := func(round int) (float64, error) {
		root := filepath.Join(b.dir, fmt.Sprintf("real-%d", round))
		defer os.RemoveAll(root)
		if err := stage(root, n); err != nil {
			return 0, err
		}
		path := filepath.Join(b.dir, "real.db")
		defer os.Remove(path)
		m, err := newRenames(root, path)
		if err != nil {
			return 0, err
		}
		took, err := figures.InFlight(n, workers, func(i int) error { return m.publishFiles(b.ctx, i) })
		if cerr := m.close(b.ctx); err == nil {
			err = cerr
		}
		return float64(n) / took.Seconds(), err
	}
	f, e, ratio, err := b.pair(floor, engine)
	if err != nil {
		return err
	}
	b.add(figures.Row{Name: "publish 3 real renames + 2 watermarks, 16 in flight", Value: e, Unit: "datasets/s", Floor: f, Ratio: ratio, Bar: ">= 0.7 of R", Ok: figures.Judged(ratio >= 0.7)})
	return nil
}

// newRenames is an engine with a new store that publishes files below root.
func newRenames(root, store string) (*machine, error) {
	files, err := local.New(root)
	if err != nil {
		return nil, err
	}
	st, err := boltstore.Init(store, nil)
	if err != nil {
		return nil, err
	}
	return start(st, fsrename.Kind(files), fsremove.Kind(files), watermark.Kind(st))
}

// publishFiles publishes dataset i of those that were staged.
func (m *machine) publishFiles(ctx context.Context, i int) error {
	p := commitstep.NewPlan("bench", dataset(i))
	for f := range 3 {
		p.Step(fsrename.Move(staged(i, f), published(i, f)))
	}
	p.Then(watermark.Set(dataset(i)+":0", commitstep.None(), commitstep.Int(100)), watermark.Set(dataset(i)+":1", commitstep.None(), commitstep.Int(200)))
	_, err := m.e.Publish(ctx, p)
	return err
}

// newBareLog is the log of floor R: a group sync for whoever waits. end closes it.
func newBareLog(path string) (q *batch.Queue[int], end func() error, err error) {
	log, err := os.Create(path)
	if err != nil {
		return nil, nil, err
	}
	q = batch.New(batch.Options{Rejoin: boltstore.Rejoin, RejoinMost: boltstore.RejoinMost}, func(ops []int, results []error) {
		_, err := log.Write(make([]byte, 1500*len(ops)))
		if err == nil {
			err = fdatasync(log)
		}
		for i := range results {
			results[i] = err
		}
	})
	return q, func() error { q.Close(); return log.Close() }, nil
}

func dataset(i int) string      { return fmt.Sprintf("topic-%05d", i) }
func staged(i, f int) string    { return fmt.Sprintf("task-output/%s/%d.avro", dataset(i), f) }
func published(i, f int) string { return fmt.Sprintf("job-output/%s/%d.avro", dataset(i), f) }

// stage writes the files of n datasets, not synced, as a job leaves them.
func stage(root string, n int) error {
	data := make([]byte, 4096)
	if err := os.MkdirAll(filepath.Join(root, "job-output"), 0o755); err != nil {
		return err
	}
	for i := range n {
		if err := os.MkdirAll(filepath.Join(root, "task-output", dataset(i)), 0o755); err != nil {
			return err
		}
		for f := range 3 {
			if err := os.WriteFile(filepath.Join(root, staged(i, f)), data, 0o644); err != nil {
				return err
			}
		}
	}
	// What is measured is the publish, not the writing of the input.
	unix.Sync()
	return nil
}

// bareDataset makes the syncs and renames of one dataset: the staged files,
// their directory and the staging root; a group sync; the new directory and
// three renames; both directories and the new directory's parent; a group sync.
func bareDataset(ctx context.Context, q *batch.Queue[int], root string, i int) error {
	src := filepath.Join(root, "task-output", dataset(i))
	dst := filepath.Join(root, "job-output", dataset(i))
	for f := range 3 {
		if err := syncPath(filepath.Join(root, staged(i, f))); err != nil {
			return err
		}
	}
	for _, d := range []string{src, filepath.Dir(src)} {
		if err := syncPath(d); err != nil {
			return err
		}
	}
	if err := q.Do(ctx, i); err != nil {
		return err
	}
	if err := os.Mkdir(dst, 0o755); err != nil {
		return err
	}
	for f := range 3 {
		if err := os.Rename(filepath.Join(root, staged(i, f)), filepath.Join(root, published(i, f))); err != nil {
			return err
		}
	}
	for _, d := range []string{dst, src, filepath.Dir(dst)} {
		if err := syncPath(d); err != nil {
			return err
		}
	}
	return q.Do(ctx, i)
}

func syncPath(p string) error {
	f, err := os.Open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
