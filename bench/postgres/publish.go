package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/commitstep/engine/bench/figures"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/batch"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// noop is a step without an effect outside of this process. With a pause it
// stands for a remote effect.
type noop struct {
	done  bool
	pause time.Duration
}

func (n *noop) Verify(context.Context, *commitstep.Attempt) (commitstep.Verdict, error) {
	if n.done {
		return commitstep.Verdict{Outcome: commitstep.Done}, nil
	}
	return commitstep.Verdict{Outcome: commitstep.NotDone}, nil
}

func (n *noop) Execute(ctx context.Context, _ *commitstep.Attempt) error {
	if n.pause > 0 {
		if err := (driver.SystemClock{}).Sleep(ctx, n.pause); err != nil {
			return err
		}
	}
	n.done = true
	return nil
}

func kinds() *commitstep.Registry {
	kind := func(name string, pause time.Duration) commitstep.Kind {
		return commitstep.Kind{Name: name, Version: 1, New: func(commitstep.Step) (commitstep.CommitStep, error) { return &noop{pause: pause}, nil }}
	}
	return commitstep.NewRegistry(kind("bench.noop", 0), kind("bench.remote", 10*time.Millisecond))
}

// fiveSteps is a plan whose steps are as large as those of a rename.
func fiveSteps(n int, kind string, sequential bool) *commitstep.Plan {
	p := commitstep.NewPlan("bench", fmt.Sprintf("dataset-%08d", n))
	for i := range 5 {
		s := commitstep.StepSpec{Kind: kind, Params: fmt.Appendf(nil,
			`{"from":"file:///data/task-output/run-17/dataset-%08d/2015-12-09/%d.avro","to":"file:///data/job-output/dataset-%08d/2015-12-09/%d.avro","length":%d}`, n, i, n, i, 1<<20+i)}
		if sequential && i > 0 {
			p.Then(s)
		} else {
			p.Step(s)
		}
	}
	return p
}

// machine is a driver on a store.
type machine struct {
	st *pgstore.Store
	e  *driver.Engine
}

func start(ctx context.Context, dsn string, concurrency int) (*machine, error) {
	st, err := pgstore.Open(ctx, dsn, nil)
	if err != nil {
		return nil, err
	}
	e, err := driver.New(driver.Config{Store: st, Kinds: kinds(), Concurrency: concurrency})
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", err, st.Close())
	}
	return &machine{st, e}, nil
}

func (m *machine) close(ctx context.Context) error {
	if err := m.e.Close(ctx); err != nil {
		return err
	}
	return m.st.Close()
}

// floor is a table with one insert and one delete per dataset, coalesced as the
// store coalesces its writes: the same batches, the same round trip for a
// transaction, the same connections.
type floor struct {
	pool *pgxpool.Pool
	q    *batch.Queue[floorOp]
}

type floorOp struct {
	id   uuid.UUID
	body []byte // nil deletes
}

func (b *bench) newFloor() (*floor, error) {
	if err := b.cluster.Exec(b.ctx, "DROP TABLE IF EXISTS floor; CREATE TABLE floor (id uuid PRIMARY KEY, body bytea NOT NULL); CHECKPOINT"); err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(b.cluster.URL("postgres") + "&pool_max_conns=8")
	if err != nil {
		return nil, err
	}
	f := &floor{}
	if f.pool, err = pgxpool.NewWithConfig(b.ctx, cfg); err != nil {
		return nil, err
	}
	f.q = batch.New(batch.Options{Rejoin: time.Millisecond, MaxBatch: 256}, func(ops []floorOp, results []error) {
		var ids, gone [][16]byte
		var bodies [][]byte
		for _, op := range ops {
			if op.body == nil {
				gone = append(gone, op.id)
			} else {
				ids, bodies = append(ids, op.id), append(bodies, op.body)
			}
		}
		var pb pgx.Batch
		if len(ids) > 0 {
			pb.Queue(`INSERT INTO floor (id, body) SELECT * FROM unnest($1::uuid[], $2::bytea[])`, ids, bodies)
		}
		if len(gone) > 0 {
			pb.Queue(`DELETE FROM floor WHERE id = ANY($1::uuid[])`, gone)
		}
		err := f.pool.SendBatch(b.ctx, &pb).Close()
		for i := range results {
			results[i] = err
		}
	})
	return f, nil
}

func (f *floor) dataset(ctx context.Context, body []byte) error {
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	if err := f.q.Do(ctx, floorOp{id, body}); err != nil {
		return err
	}
	return f.q.Do(ctx, floorOp{id: id})
}

func (f *floor) close() {
	f.q.Close()
	f.pool.Close()
}

// recordBytes is how much the store keeps of one of our datasets while it is
// live, read from a store that holds exactly one.
func (b *bench) recordBytes() (int, error) {
	dsn, err := b.store()
	if err != nil {
		return 0, err
	}
	if err := makePending(b.ctx, dsn, 1, "bench.noop", false); err != nil {
		return 0, err
	}
	conn, err := pgx.Connect(b.ctx, b.cluster.URL("postgres"))
	if err != nil {
		return 0, err
	}
	defer conn.Close(b.ctx)
	size := 0
	s := fmt.Sprintf("bench%d", b.schemas)
	err = conn.QueryRow(b.ctx, fmt.Sprintf(`SELECT (SELECT sum(octet_length(header) + octet_length(steps)) FROM %s.documents) + (SELECT sum(pg_column_size(q.*)) FROM %s.sequences q)`, s, s)).Scan(&size)
	if err == nil {
		err = b.drop()
	}
	return size, err
}

func (b *bench) publish() error {
	size, err := b.recordBytes()
	if err != nil {
		return err
	}
	body := bytes.Repeat([]byte("v"), size)
	for i := range body { // nothing that compression could make small
		body[i] = byte(i*7 + i>>3)
	}
	fmt.Fprintf(os.Stderr, "bench/postgres: a dataset of five steps keeps %d bytes\n", size)
	for _, c := range []struct {
		workers, n int
	}{{16, 12_000}, {64, 24_000}} {
		n := int(float64(c.n) * b.scale)
		conns := 0
		f, e, ratio, err := figures.Pair(b.pairs, func(int) (float64, error) {
			f, err := b.newFloor()
			if err != nil {
				return 0, err
			}
			defer f.close()
			took, err := figures.InFlight(n, c.workers, func(int) error { return f.dataset(b.ctx, body) })
			return float64(n) / took.Seconds(), err
		}, func(int) (float64, error) {
			dsn, err := b.store()
			if err != nil {
				return 0, err
			}
			m, err := start(b.ctx, dsn, 64)
			if err != nil {
				return 0, err
			}
			took, err := figures.InFlight(n, c.workers, func(i int) error { _, err := m.e.Publish(b.ctx, fiveSteps(i, "bench.noop", false)); return err })
			if err != nil {
				return 0, err
			}
			conns = max(conns, m.st.Connections())
			if err := m.close(b.ctx); err != nil {
				return 0, err
			}
			return float64(n) / took.Seconds(), b.drop()
		})
		if err != nil {
			return err
		}
		name := fmt.Sprintf("publish, 5 no-op steps, %d in flight", c.workers)
		b.add(figures.Row{Name: name, Value: e, Unit: "datasets/s", Floor: f, Ratio: ratio, Bar: ">= 0.6 of the floor", Ok: figures.Judged(ratio >= 0.6)})
		if c.workers == 16 {
			b.add(figures.Row{Name: name, Value: e, Unit: "datasets/s", Bar: ">= 2000/s", Ok: figures.Judged(e >= 2000)})
		} else {
			b.add(figures.Row{Name: name, Value: float64(conns), Unit: "connections", Bar: "<= 8", Ok: figures.Judged(conns <= 8)})
		}
	}
	return nil
}

// trips counts the turns of request and answer of one dataset that is published
// alone, at a proxy before the server.
func (b *bench) trips() error {
	dsn, err := b.store()
	if err != nil {
		return err
	}
	server := fmt.Sprintf("127.0.0.1:%d", b.cluster.Port())
	p, err := faultproxy.Listen(server, faultproxy.PostgreSQL)
	if err != nil {
		return err
	}
	defer p.Close()
	m, err := start(b.ctx, strings.Replace(dsn, server, p.Addr(), 1), 1)
	if err != nil {
		return err
	}
	var counts []float64
	for i := range 50 {
		before := p.RoundTrips()
		if _, err := m.e.Publish(b.ctx, fiveSteps(i, "bench.noop", false)); err != nil {
			return err
		}
		if i >= 10 { // connections have learned the statements
			counts = append(counts, float64(p.RoundTrips()-before))
		}
	}
	if err := m.close(b.ctx); err != nil {
		return err
	}
	v := figures.Median(counts)
	b.add(figures.Row{Name: "round trips for one dataset, alone", Value: v, Unit: "turns", Bar: "<= 4", Ok: figures.Judged(v <= 4)})
	return b.drop()
}
