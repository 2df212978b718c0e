// Command postgres measures the PostgreSQL store beside its floor, in the same
// run: what the same bytes cost as one coalesced insert and one coalesced delete
// per dataset. It starts a server of its own, prints a table and writes
// bench/out/postgres.json. Floors and engine run interleaved, in pairs, and the
// median of the ratios counts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/commitstep/engine/bench/figures"
	"github.com/commitstep/engine/internal/testkit/pgkit"
	"github.com/commitstep/engine/store/pgstore"
)

type bench struct {
	ctx     context.Context
	cluster *pgkit.Cluster
	pairs   int
	scale   float64
	rows    []figures.Row
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
	return errors.Join(append(failed, figures.Show(b.rows, *out))...)
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

func (b *bench) add(r figures.Row) { b.rows = append(b.rows, r) }
