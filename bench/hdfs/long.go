package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/commitstep/engine/bench/figures"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
)

// told is what the child with the long plan tells.
type told struct {
	Prepared float64 `json:"prepared"` // seconds until it was stored
	Seconds  float64 `json:"seconds"`
	PeakAnon float64 `json:"peakAnonMiB"`
}

const longDirs = 10

func longPath(what string, i, n int) string {
	return fmt.Sprintf("/long/%s/%d/%06d", what, i/max(1, n/longDirs), i)
}

// longPlan publishes one plan with very many renames, in a process of its own
// since memory is measured per process.
func (b *bench) longPlan(ctx context.Context) error {
	n := b.scale.long
	if n == 0 {
		return nil
	}
	var dirs []string
	for d := range longDirs + 1 {
		dirs = append(dirs, fmt.Sprintf("/long/in/%d", d))
	}
	fmt.Fprintf(os.Stderr, "staging %d files\n", n)
	if err := stage(b.cluster, dirs, n, func(i int) string { return longPath("in", i, n) }); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, "-child", filepath.Join(b.dir, "long.db"), "-cluster", b.cluster.RPC()+","+b.cluster.HTTP(), "-long", strconv.Itoa(n))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("the long plan in a child process: %w", err)
	}
	var f told
	if err := json.Unmarshal(out, &f); err != nil {
		return err
	}
	rate := float64(n) / f.Seconds
	small := 0.0
	for _, r := range b.rows {
		if r.Unit == "renames/s" && strings.HasPrefix(r.Name, "publish") {
			small = r.Value
		}
	}
	b.rows = append(b.rows,
		figures.Row{Name: fmt.Sprintf("one plan of %d renames, peak RssAnon", n), Value: f.PeakAnon, Unit: "MiB", Bar: "<= 160", Ok: figures.Judged(f.PeakAnon <= 160)},
		figures.Row{Name: fmt.Sprintf("one plan of %d renames (%.1f s of it to prepare)", n, f.Prepared), Value: rate, Unit: "renames/s", Floor: small, Ratio: rate / max(1, small), Bar: ">= the small plans", Ok: figures.Judged(rate >= small)})
	return nil
}

func longChild(ctx context.Context, cluster, db string, n int) error {
	rpc, web, _ := strings.Cut(cluster, ",")
	stop := figures.WatchAnon()
	var stored time.Time
	start := time.Now()
	e, err := open([]string{rpc}, []string{web}, db, nil, driver.Config{Observer: driver.ObserverFunc(func(_ context.Context, ev driver.Event) {
		switch ev.Type {
		case driver.EventPrepared:
			if ev.Count%10240 == 0 {
				fmt.Fprintf(os.Stderr, "%d prepared after %s\n", ev.Count, time.Since(start).Round(time.Millisecond))
			}
		case driver.EventStored:
			stored = time.Now()
		}
	})})
	if err != nil {
		return err
	}
	plan := commitstep.NewPlan("bench", "long")
	plan.Stream = func(yield func(commitstep.StagedSpec, error) bool) {
		for i := range n {
			if !yield(commitstep.StagedSpec{StepSpec: move(longPath("in", i, n), longPath("out", i, n))}, nil) {
				return
			}
		}
	}
	_, perr := e.Publish(ctx, plan)
	took := time.Since(start)
	fmt.Fprintln(os.Stderr, "calls:", callText(e.files.Calls(), n))
	if err := e.close(); err != nil {
		return err
	}
	peak := stop()
	if perr != nil {
		return perr
	}
	return json.NewEncoder(os.Stdout).Encode(told{Prepared: stored.Sub(start).Seconds(), Seconds: took.Seconds(), PeakAnon: peak})
}
