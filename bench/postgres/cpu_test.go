package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/bench/figures"
	"github.com/commitstep/engine/internal/testkit/pgkit"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// These benchmarks tell what a dataset costs in processor time, in this process
// and in the server, which a busy machine distorts less than the datasets per
// second of `make bench-postgres`. Profile them with -cpuprofile and -memprofile.

func newBench(b *testing.B) *bench {
	c, err := pgkit.Start(context.Background(), "max_connections=200", "shared_buffers=256MB", "max_wal_size=4GB")
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, c.Close()) })
	return &bench{ctx: context.Background(), cluster: c, pairs: 1, scale: 1}
}

func BenchmarkPublish(b *testing.B) {
	for _, workers := range []int{16, 64} {
		b.Run(strconv.Itoa(workers), func(b *testing.B) {
			x := newBench(b)
			dsn, err := x.store()
			require.NoError(b, err)
			m, err := start(x.ctx, dsn, 64)
			require.NoError(b, err)
			x.measure(b, workers, func(i int) error {
				_, err := m.e.Publish(x.ctx, fiveSteps(i, "bench.noop", false))
				return err
			})
			require.NoError(b, m.close(x.ctx))
		})
	}
}

// BenchmarkFloor is the same for the floor.
func BenchmarkFloor(b *testing.B) {
	body := bytes.Repeat([]byte("v"), 1605)
	for i := range body {
		body[i] = byte(i*7 + i>>3)
	}
	for _, workers := range []int{16, 64} {
		b.Run(strconv.Itoa(workers), func(b *testing.B) {
			x := newBench(b)
			f, err := x.newFloor()
			require.NoError(b, err)
			defer f.close()
			x.measure(b, workers, func(int) error { return f.dataset(x.ctx, body) })
		})
	}
}

// BenchmarkRecover recovers b.N pending sequences.
func BenchmarkRecover(b *testing.B) {
	x := newBench(b)
	dsn, err := x.store()
	require.NoError(b, err)
	require.NoError(b, makePending(x.ctx, dsn, b.N, "bench.noop", false))
	before := x.spent(b)
	b.ReportAllocs()
	b.ResetTimer()
	n, err := recoverAll(x.ctx, dsn, 64)
	b.StopTimer()
	require.NoError(b, err)
	require.Equal(b, b.N, n)
	x.spent(b).report(b, before)
}

func (x *bench) measure(b *testing.B, workers int, fn func(i int) error) {
	_, err := figures.InFlight(500, workers, func(i int) error { return fn(-1 - i) })
	require.NoError(b, err)
	before := x.spent(b)
	b.ReportAllocs()
	b.ResetTimer()
	_, err = figures.InFlight(b.N, workers, fn)
	b.StopTimer()
	require.NoError(b, err)
	x.spent(b).report(b, before)
}

// spent is processor time so far, here and in all processes of the server.
type spent struct{ here, server time.Duration }

func (s spent) report(b *testing.B, before spent) {
	b.ReportMetric(float64((s.here-before.here).Microseconds())/float64(b.N), "here-us/op")
	b.ReportMetric(float64((s.server-before.server).Microseconds())/float64(b.N), "server-us/op")
}

func (x *bench) spent(b *testing.B) spent {
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	s := spent{here: time.Duration(u.Utime.Nano() + u.Stime.Nano())}
	entries, err := os.ReadDir("/proc")
	require.NoError(b, err)
	parents, ticks := map[int]int{}, map[int]int64{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has just ended
		}
		f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		parents[pid], _ = strconv.Atoi(f[1])
		user, _ := strconv.ParseInt(f[11], 10, 64)
		system, _ := strconv.ParseInt(f[12], 10, 64)
		ticks[pid] = user + system
	}
	for pid, t := range ticks {
		for p := pid; p > 1; p = parents[p] {
			if parents[p] == os.Getpid() {
				s.server += time.Duration(t) * time.Second / 100
				break
			}
		}
	}
	return s
}
