package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	clib "github.com/colinmarc/hdfs/v2"
	"github.com/commitstep/engine/bench/figures"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/filesys/hdfs"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/google/uuid"
)

// bench is one engine and one bare client on one table.
type bench struct {
	server *hivekit.Server
	db     string
	root   string // the directory of this run, without the file system's name
	days   int
	rows   []figures.Row

	files *clib.Client // as Hive
	bare  *hs2.Client
	own   *hs2.Session // of the bare client
	list  *hs2.QueryList

	calls  waiting
	engine *driver.Engine
	closes []func() error
}

// rows of the old and of the new version of a partition.
const oldRows, newRows = 3, 5

func lines(n, version int) string {
	var out strings.Builder
	for id := range n {
		fmt.Fprintf(&out, "%d,%d\n", id, version)
	}
	return out.String()
}

func open(ctx context.Context, s *hivekit.Server, dir string) (*bench, error) {
	id := strings.ReplaceAll(uuid.NewString(), "-", "")
	b := &bench{server: s, db: "bench" + id, root: s.Root + "/bench" + id}
	if err := b.connect(ctx, dir); err != nil {
		return nil, errors.Join(err, b.close(ctx))
	}
	return b, nil
}

func (b *bench) connect(ctx context.Context, dir string) (err error) {
	s := b.server
	if b.files, err = clib.NewClient(clib.ClientOptions{Addresses: s.Hadoop.RPCs(), User: hivekit.User, UseDatanodeHostname: true}); err != nil {
		return err
	}
	b.closes = append(b.closes, b.files.Close)
	if b.bare, err = hs2.New(hs2.Config{Address: s.Address(), User: hivekit.User}); err != nil {
		return err
	}
	b.closes = append(b.closes, b.bare.Close)
	if b.list, err = hs2.NewQueryList(hs2.QueryListConfig{URL: s.WebUI()}); err != nil {
		return err
	}
	b.closes = append(b.closes, b.list.Close)
	if b.own, err = b.bare.OpenSession(ctx, nil); err != nil {
		return err
	}
	if err := b.tables(ctx); err != nil {
		return err
	}

	f, err := hdfs.New(hdfs.Options{Name: "bench", Addresses: s.Hadoop.RPCs(), HTTPAddresses: s.Hadoop.HTTPs(), User: hivekit.User})
	if err != nil {
		return err
	}
	b.closes = append(b.closes, f.Close)
	hive, err := hivepublish.Connect("dw", hivepublish.Config{Address: s.Address(), User: hivekit.User, WebUI: s.WebUI(), Dial: b.calls.dial,
		Volumes: []hivepublish.Volume{{URI: s.FS, Files: f}}})
	if err != nil {
		return err
	}
	b.closes = append(b.closes, hive.Close)
	st, err := boltstore.Init(filepath.Join(dir, "commit.db"), nil)
	if err != nil {
		return err
	}
	b.closes = append(b.closes, st.Close)
	// Two hundred partitions take longer than a publish waits by default.
	b.engine, err = driver.New(driver.Config{Store: st, Policy: driver.Policy{WaitBudget: time.Hour}, Kinds: commitstep.NewRegistry(append(hivepublish.Kinds(hive), watermark.Kind(st))...)})
	if err != nil {
		return err
	}
	b.closes = append(b.closes, func() error { return b.engine.Close(context.Background()) })
	return nil
}

// tables makes one to publish into and one with the rows that are published.
func (b *bench) tables(ctx context.Context) error {
	if err := b.files.MkdirAll(b.root+"/facts", 0o755); err != nil {
		return err
	}
	if err := hadoopkit.Put(b.files, b.root+"/loaded/rows", lines(newRows, 1)); err != nil {
		return err
	}
	const format = " ROW FORMAT DELIMITED FIELDS TERMINATED BY ','"
	for _, sql := range []string{
		"CREATE DATABASE " + b.db,
		"CREATE EXTERNAL TABLE " + b.db + ".facts (id INT, version INT) PARTITIONED BY (dt STRING)" + format + " LOCATION '" + b.server.FS + b.root + "/facts'",
		"CREATE EXTERNAL TABLE " + b.db + ".loaded (id INT, version INT)" + format + " LOCATION '" + b.server.FS + b.root + "/loaded'",
	} {
		if err := b.exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) exec(ctx context.Context, sql string) error {
	if _, err := b.bare.Query(ctx, b.own, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

func (b *bench) close(ctx context.Context) error {
	var errs []error
	if b.own != nil {
		errs = append(errs, b.exec(ctx, "DROP DATABASE IF EXISTS "+b.db+" CASCADE"), b.own.Close(ctx))
	}
	if b.files != nil {
		if err := b.files.RemoveAll(b.root); err != nil && !os.IsNotExist(err) {
			errs = append(errs, err)
		}
	}
	for _, f := range slices.Backward(b.closes) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// partitions are new ones with old rows in them.
func (b *bench) partitions(ctx context.Context, n int) ([]string, error) {
	var days []string
	sql := "ALTER TABLE " + b.db + ".facts ADD"
	for range n {
		b.days++
		day := fmt.Sprintf("day-%06d", b.days)
		if err := hadoopkit.Put(b.files, b.root+"/facts/dt="+day+"/rows", lines(oldRows, 0)); err != nil {
			return nil, err
		}
		sql += " PARTITION (dt='" + day + "')"
		days = append(days, day)
	}
	return days, b.exec(ctx, sql)
}

func (b *bench) step(day string) commitstep.StepSpec {
	n := int64(newRows)
	return hivepublish.StageAndSwap(hivepublish.Stage{
		Target: hivepublish.Target{Hive: "dw", Table: b.db + ".facts", Partition: map[string]string{"dt": day}},
		Query:  "SELECT id, version FROM " + b.db + ".loaded",
		Under:  b.server.FS + b.root + "/attempts",
		Rows:   &n,
	})
}

// holds fails when a partition has not the new rows.
func (b *bench) holds(ctx context.Context, day string) error {
	t, err := b.bare.Query(ctx, b.own, "SELECT id, version FROM "+b.db+".facts WHERE dt='"+day+"'")
	if err != nil {
		return err
	}
	if len(t.Rows) != newRows {
		return fmt.Errorf("partition %s has %d rows after its publish, want %d", day, len(t.Rows), newRows)
	}
	return nil
}

// singly publishes one partition after the other, and lets the bare client do the
// same with another one each time. The first of each starts its session's Tez and is
// not counted.
func (b *bench) singly(ctx context.Context, n int) error {
	fmt.Fprintf(os.Stderr, "%d publishes, one after the other\n", n)
	days, err := b.partitions(ctx, 2*(n+1))
	if err != nil {
		return err
	}
	var outside, whole, floor, ratio, calls []float64
	for i := range n + 1 {
		ours, theirs := days[2*i], days[2*i+1]
		b.calls.reset()
		start := time.Now()
		_, err := b.engine.Publish(ctx, commitstep.NewPlan("bench", ours).Step(b.step(ours)).Then(watermark.Set(ours, commitstep.None(), commitstep.Int(1))))
		end := time.Now()
		if err != nil {
			return err
		}
		waited, asked := b.calls.since(start, end)
		sent, err := b.sent(ctx, start, end)
		if err != nil {
			return err
		}
		took, err := b.replay(ctx, sent, ours, theirs)
		if err != nil {
			return fmt.Errorf("bare client: %w", err)
		}
		if err := errors.Join(b.holds(ctx, ours), b.holds(ctx, theirs)); err != nil {
			return err
		}
		if i == 0 {
			continue
		}
		wall := end.Sub(start)
		outside = append(outside, ms(wall-waited))
		whole, floor, ratio = append(whole, ms(wall)), append(floor, ms(took)), append(ratio, wall.Seconds()/took.Seconds())
		calls = append(calls, float64(asked))
	}
	m := figures.Median(outside)
	b.rows = append(b.rows,
		figures.Row{Name: "stage_and_swap: outside of HiveServer2's answers, median", Value: m, Unit: "ms/publish", Bar: "<= 100 ms", Ok: figures.Judged(m <= 100)},
		figures.Row{Name: "  the longest", Value: slices.Max(outside), Unit: "ms/publish"},
		figures.Row{Name: "  the whole, beside a bare client with the same statements", Value: figures.Median(whole), Unit: "ms/publish", Floor: figures.Median(floor), Ratio: figures.Median(ratio)},
		figures.Row{Name: "  calls to HiveServer2", Value: figures.Median(calls), Unit: "calls/publish"})
	return nil
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

// replay sends the statements that published one partition for another one, as a
// client does that only sends them, ALTERs in a session of their own.
func (b *bench) replay(ctx context.Context, sent []hs2.Query, ours, theirs string) (time.Duration, error) {
	// The token is in paths, and without dashes in the name of a table.
	token := uuid.NewString()
	rename := []string{ours, theirs}
	for _, q := range sent {
		for _, old := range tokens(q.Text) {
			rename = append(rename, old, token, strings.ReplaceAll(old, "-", ""), strings.ReplaceAll(token, "-", ""))
		}
	}
	renamed := strings.NewReplacer(rename...)
	start := time.Now()
	for _, q := range sent {
		var err error
		sql := renamed.Replace(q.Text)
		s := b.own
		if strings.Contains(sql, "ALTER TABLE") {
			if s, err = b.bare.OpenSession(ctx, nil); err != nil {
				return 0, err
			}
		}
		_, err = b.bare.Query(ctx, s, sql)
		if s != b.own {
			err = errors.Join(err, s.Close(ctx))
		}
		if err != nil {
			return 0, fmt.Errorf("%s: %w", sql, err)
		}
	}
	return time.Since(start), nil
}

// sent are the engine's statements of a publish, in their order: nobody else works
// on its database meanwhile.
func (b *bench) sent(ctx context.Context, start, end time.Time) ([]hs2.Query, error) {
	all, err := b.list.Find(ctx, b.db)
	if err != nil {
		return nil, err
	}
	// The list has whole milliseconds.
	out := slices.DeleteFunc(all, func(q hs2.Query) bool { return q.Begin.Before(start.Truncate(time.Millisecond)) || q.Begin.After(end) })
	slices.SortFunc(out, func(a, c hs2.Query) int { return cmp.Or(a.Begin.Compare(c.Begin), cmp.Compare(a.QueryID, c.QueryID)) })
	if len(out) < 8 {
		return nil, fmt.Errorf("the server's list has only %d statements of the publish", len(out))
	}
	return out, nil
}

// tokens are the tokens of steps in a statement.
func tokens(sql string) []string {
	var out []string
	for _, part := range strings.Split(sql, "token=")[1:] {
		if len(part) >= 36 && uuid.Validate(part[:36]) == nil && !slices.Contains(out, part[:36]) {
			out = append(out, part[:36])
		}
	}
	return out
}

// together publishes many partitions by one plan.
func (b *bench) together(ctx context.Context, n int) error {
	if n == 0 {
		return nil
	}
	fmt.Fprintf(os.Stderr, "%d partitions in one plan\n", n)
	days, err := b.partitions(ctx, n)
	if err != nil {
		return err
	}
	var steps []commitstep.StepSpec
	for _, day := range days {
		steps = append(steps, b.step(day))
	}
	b.calls.reset()
	start := time.Now()
	_, err = b.engine.Publish(ctx, commitstep.NewPlan("bench", "together").Step(steps...).Then(watermark.Set("together", commitstep.None(), commitstep.Int(1))))
	end := time.Now()
	if err != nil {
		return err
	}
	waited, calls := b.calls.since(start, end)
	for _, day := range days {
		if err := b.holds(ctx, day); err != nil {
			return err
		}
	}
	each := func(d time.Duration) float64 { return ms(d) / float64(n) }
	outside := each(end.Sub(start) - waited)
	b.rows = append(b.rows,
		figures.Row{Name: fmt.Sprintf("%d partitions in one plan: outside of answers", n), Value: outside, Unit: "ms/partition", Bar: "<= 100 ms", Ok: figures.Judged(outside <= 100)},
		figures.Row{Name: "  the whole", Value: each(end.Sub(start)), Unit: "ms/partition"},
		figures.Row{Name: "  calls to HiveServer2", Value: float64(calls) / float64(n), Unit: "calls/partition"})
	return nil
}
