package main

import (
	"bytes"
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/commitstep/engine/bench/figures"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// These benchmarks tell what a publish costs in processor time and memory,
// which a busy machine distorts far less than the publishes per second of
// `make bench-engine`. Profile them with -cpuprofile and -memprofile.

func BenchmarkPublish(b *testing.B) {
	for _, c := range []struct {
		name    string
		workers int
	}{{"16", 16}, {"64", 64}} {
		b.Run(c.name, func(b *testing.B) {
			m, err := newMachine(b.TempDir(), "engine.db")
			require.NoError(b, err)
			measure(b, c.workers, func(i int) error { _, err := m.e.Publish(context.Background(), fiveSteps("bench", i)); return err })
			require.NoError(b, m.close(context.Background()))
		})
	}
}

// BenchmarkFloor is the same for floor B.
func BenchmarkFloor(b *testing.B) {
	value := bytes.Repeat([]byte("v"), 1418)
	for _, c := range []struct {
		name    string
		workers int
	}{{"16", 16}, {"64", 64}} {
		b.Run(c.name, func(b *testing.B) {
			f, err := newBareBolt(b.TempDir(), "floor.db")
			require.NoError(b, err)
			measure(b, c.workers, func(int) error { return f.dataset(context.Background(), timeKey(), value) })
			require.NoError(b, f.close())
		})
	}
}

// BenchmarkRenames publishes three files and two watermarks per dataset.
func BenchmarkRenames(b *testing.B) {
	for _, c := range []struct {
		name    string
		workers int
	}{{"1", 1}, {"16", 16}} {
		b.Run(c.name, func(b *testing.B) {
			root := b.TempDir()
			require.NoError(b, stage(root, b.N))
			m, err := newRenames(root, filepath.Join(b.TempDir(), "real.db"))
			require.NoError(b, err)
			measure(b, c.workers, func(i int) error { return m.publishFiles(context.Background(), i-1) })
			require.NoError(b, m.close(context.Background()))
		})
	}
}

// BenchmarkRenamesFloor is the same for floor R.
func BenchmarkRenamesFloor(b *testing.B) {
	for _, c := range []struct {
		name    string
		workers int
	}{{"1", 1}, {"16", 16}} {
		b.Run(c.name, func(b *testing.B) {
			root := b.TempDir()
			require.NoError(b, stage(root, b.N))
			q, end, err := newBareLog(filepath.Join(b.TempDir(), "bare.log"))
			require.NoError(b, err)
			measure(b, c.workers, func(i int) error { return bareDataset(context.Background(), q, root, i-1) })
			require.NoError(b, end())
		})
	}
}

func measure(b *testing.B, workers int, fn func(i int) error) {
	b.ReportAllocs()
	var n atomic.Int64
	b.ResetTimer()
	before := processorTime(b)
	_, err := figures.InFlight(b.N, workers, func(int) error { return fn(int(n.Add(1))) })
	used := processorTime(b) - before
	b.StopTimer()
	require.NoError(b, err)
	b.ReportMetric(float64(used)/float64(b.N)/1e3, "cpu-µs/op")
}

// processorTime is what this process has used, user and system, in ns.
func processorTime(b *testing.B) int64 {
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}
