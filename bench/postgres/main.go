// Command postgres measures the PostgreSQL store beside its floor, in the same
// run: what the same bytes cost as one coalesced insert and one coalesced delete
// per dataset. It starts a server of its own, prints a table and writes
// bench/out/postgres.json. Floors and engine run interleaved, in pairs, and the
// median of the ratios counts.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/commitstep/engine/internal/testkit/pgkit"
	"github.com/commitstep/engine/store/pgstore"
)

// row is one line of the result; Ok is nil where no bar applies.
type row struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Floor float64 `json:"floor"`
	Ratio float64 `json:"ratio"`
	Bar   string  `json:"bar"`
	Ok    *bool   `json:"ok"`
}

type bench struct {
	ctx     context.Context
	cluster *pgkit.Cluster
	pairs   int
	scale   float64
	rows    []row
	schemas int
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench/postgres:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	pairs := flag.Int("pairs", 5, "pairs of floor and engine runs")
	scale := flag.Float64("scale", 1, "factor on the amount of work")
	only := flag.String("only", "", "run the parts whose name contains this")
	job := flag.String("child", "", "internal: run one measurement in this process")
	dsn := flag.String("dsn", "", "internal: the store of the child")
	out := flag.String("out", filepath.Join("bench", "out", "postgres.json"), "result file")
	flag.Parse()
	ctx := context.Background()
	if *job != "" {
		return runChild(ctx, *job, *dsn, *scale)
	}
	c, err := pgkit.Start(ctx, "max_connections=200", "shared_buffers=256MB", "max_wal_size=4GB")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	b := &bench{ctx: ctx, cluster: c, pairs: *pairs, scale: *scale}
	var failed []error
	for _, part := range []struct {
		name string
		run  func() error
	}{{"trips", b.trips}, {"publish", b.publish}, {"recover", b.recover}, {"processes", b.processes}, {"long", b.long}} {
		if !strings.Contains(part.name, *only) {
			continue
		}
		fmt.Fprintf(os.Stderr, "bench/postgres: %s …\n", part.name)
		if err := part.run(); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", part.name, err))
		}
	}
	b.print()
	data, err := json.MarshalIndent(b.rows, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(*out), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(*out, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return errors.Join(failed...)
}

// store makes an empty store and gives its address.
func (b *bench) store() (string, error) {
	b.schemas++
	schema := fmt.Sprintf("bench%d", b.schemas)
	dsn := b.cluster.URL("postgres") + "&schema=" + schema
	m, err := pgstore.NewMigrator(b.ctx, dsn, nil)
	if err != nil {
		return "", err
	}
	_, err = m.Up(b.ctx, 0)
	return dsn, errors.Join(err, m.Close())
}

// drop removes a store, so that the next one has the machine to itself.
func (b *bench) drop() error {
	return b.cluster.Exec(b.ctx, fmt.Sprintf("DROP SCHEMA bench%d CASCADE; CHECKPOINT", b.schemas))
}

func (b *bench) print() {
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "WORK\tVALUE\tUNIT\tFLOOR\tRATIO\tBAR\tOK")
	for _, r := range b.rows {
		ok, floor, ratio := "-", "-", "-"
		if r.Ok != nil {
			ok = map[bool]string{true: "yes", false: "NO"}[*r.Ok]
		}
		if r.Floor != 0 {
			floor, ratio = number(r.Floor), fmt.Sprintf("%.2f", r.Ratio)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, number(r.Value), r.Unit, floor, ratio, r.Bar, ok)
	}
	w.Flush()
}

func number(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

func (b *bench) add(r row) { b.rows = append(b.rows, r) }

func judged(ok bool) *bool { return &ok }

func median(v []float64) float64 {
	s := slices.Clone(v)
	slices.Sort(s)
	if len(s) == 0 {
		return 0
	}
	return s[len(s)/2]
}

// pair runs floor and engine in turn and returns their medians and the median
// of the ratios engine/floor.
func (b *bench) pair(floor, engine func() (float64, error)) (f, e, ratio float64, err error) {
	var fs, es, rs []float64
	for range b.pairs {
		a, err := floor()
		if err != nil {
			return 0, 0, 0, fmt.Errorf("floor: %w", err)
		}
		c, err := engine()
		if err != nil {
			return 0, 0, 0, fmt.Errorf("engine: %w", err)
		}
		fs, es, rs = append(fs, a), append(es, c), append(rs, c/a)
	}
	return median(fs), median(es), median(rs), nil
}
