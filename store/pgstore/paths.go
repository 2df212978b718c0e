package pgstore

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var _ store.PathKeeper = (*Store)(nil)

// Two plans whose paths overlap share a digest: that of the outer path, which
// one of them uses and the other has above its own. Both want the row of that
// digest, so the second one waits for the first, and then finds it. Rows that
// stand for "something below was used" are never changed: all runs that stage
// in one directory read them, and none waits for another.

// breaksPaths reports a put whose paths were used before.
func breaksPaths(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == "23514" && pe.ConstraintName == "paths_used"
}

// pathUse is what one sequence does with one path.
type pathUse struct{ exact, above bool }

func pathUses(roots []commitstep.StagingRoot) map[commitstep.PathDigest]pathUse {
	out := make(map[commitstep.PathDigest]pathUse, len(roots)*2)
	for _, r := range roots {
		u := out[r.Digest]
		u.exact = true
		out[r.Digest] = u
		for _, d := range r.Above {
			u := out[d]
			u.above = true
			out[d] = u
		}
	}
	return out
}

// queuePaths queues what remembers the paths of those puts that the statements
// before have stored, and what fails the transaction when one was used before.
// Then each put is tried alone.
func (s *Store) queuePaths(b *pgx.Batch, puts []*op) {
	type row struct {
		id   uuid.UUID
		hash commitstep.PathDigest
		pathUse
		accept bool
	}
	var rows []row
	for _, o := range puts {
		for d, u := range pathUses(o.put.roots) {
			rows = append(rows, row{o.put.d.ID, d, u, o.put.header.AcceptReusedPaths != ""})
		}
	}
	if len(rows) == 0 {
		return
	}
	// In one order everywhere, so that two transactions wait, and not both.
	slices.SortFunc(rows, func(a, b row) int { return slices.Compare(a.hash[:], b.hash[:]) })
	n := len(rows)
	ids, hashes := make([][16]byte, n), make([][16]byte, n)
	exact, above, accept := make([]bool, n), make([]bool, n), make([]bool, n)
	for i, r := range rows {
		ids[i], hashes[i], exact[i], above[i], accept[i] = r.id, r.hash, r.exact, r.above, r.accept
	}
	var st statement
	table := func() {
		st = statement{}
		st.with("t", `SELECT * FROM unnest(`+st.arg(ids, "uuid[]")+`, `+st.arg(hashes, "uuid[]")+`, `+st.arg(exact, "bool[]")+`, `+st.arg(above, "bool[]")+`, `+
			st.arg(accept, "bool[]")+`) AS t(id, hash, exact, above, accept)
			WHERE EXISTS (SELECT FROM {s}.sequences s WHERE s.id = t.id AND s.xmin = pg_current_xact_id()::xid)`)
	}
	change := `NOTHING`
	if slices.Contains(accept, true) {
		// Such a put is alone in its transaction, and has locked the table.
		change = `UPDATE SET sequence = coalesce(EXCLUDED.sequence, p.sequence), below = coalesce(p.below, EXCLUDED.below)`
	}
	table()
	b.Queue(s.sql(st.text(`INSERT INTO {s}.paths AS p (hash, sequence, below)
		SELECT t.hash, CASE WHEN t.exact THEN t.id END, CASE WHEN t.above THEN t.id END FROM t ORDER BY t.hash ON CONFLICT (hash) DO `+change)), st.args...)
	table()
	b.Queue(s.sql(st.text(`INSERT INTO {s}.paths (hash) SELECT t.hash FROM t JOIN {s}.paths p ON p.hash = t.hash
		WHERE NOT t.accept AND (t.exact AND (p.sequence IS DISTINCT FROM t.id OR p.below <> t.id) OR t.above AND p.sequence <> t.id) LIMIT 1`)), st.args...)
}

// putAccepting stores a plan that accepts paths that were used before. It is
// alone: what else uses paths waits, so that it sees what live sequences use.
func (s *Store) putAccepting(ctx context.Context, p *putting) error {
	return s.session(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, s.sql(`LOCK TABLE {s}.paths IN SHARE ROW EXCLUSIVE MODE`)); err != nil {
			return err
		}
		used, err := s.liveConflict(ctx, tx, p.header.Used, p.d.ID)
		if err != nil {
			return err
		}
		if used != nil {
			return answered(used)
		}
		o := &op{kind: opPut, put: p}
		b := &pgx.Batch{}
		s.queuePuts(b, []*op{o})
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		if !o.ok {
			return answered(errRefused)
		}
		return nil
	})
}

// liveConflict finds another live sequence that stands in the way of u. One that
// cannot be read is left out: it is quarantined, and nobody runs it.
func (s *Store) liveConflict(ctx context.Context, tx pgx.Tx, u *commitstep.UsedPaths, but uuid.UUID) (*store.UsedPathError, error) {
	rows, err := tx.Query(ctx, s.sql(`SELECT s.id, s.job, s.dataset, d.header FROM {s}.sequences s JOIN {s}.documents d ON d.id = s.id WHERE s.state <> 'completed' AND s.id <> $1`), but)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id uuid.UUID
		var job, dataset string
		var header []byte
		if err := rows.Scan(&id, &job, &dataset, &header); err != nil {
			return nil, err
		}
		h, err := openHeader(id, commitstep.Key{Job: fromText(job), Dataset: fromText(dataset)}, header)
		if err != nil {
			continue
		}
		if d, below, found := u.Conflict(h.Used); found {
			return &store.UsedPathError{Path: d, Below: below, Sequence: id, Live: true}, nil
		}
	}
	return nil, rows.Err()
}

// FindUsed tells what Put would refuse; see [store.PathKeeper].
func (s *Store) FindUsed(ctx context.Context, used *commitstep.UsedPaths, roots []commitstep.StagingRoot, accept bool) (*store.UsedPathError, error) {
	if used == nil && len(roots) == 0 {
		return nil, nil
	}
	if accept {
		var found *store.UsedPathError
		err := s.session(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
			found, err = s.liveConflict(ctx, tx, used, uuid.Nil)
			return err
		})
		return found, err
	}
	uses := pathUses(roots)
	hashes := make([][16]byte, 0, len(uses))
	for d := range maps.Keys(uses) {
		hashes = append(hashes, d)
	}
	var found *store.UsedPathError
	err := s.read(ctx, func(b *pgx.Batch) {
		found = nil
		b.Queue(s.sql(`SELECT p.hash, p.sequence, p.below,
			EXISTS (SELECT FROM {s}.sequences s WHERE s.id = coalesce(p.sequence, p.below) AND s.state <> 'completed')
			FROM unnest($1::uuid[]) AS t(hash) JOIN {s}.paths p ON p.hash = t.hash`), hashes).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var hash uuid.UUID
				var sequence, below *uuid.UUID
				var live bool
				if err := rows.Scan(&hash, &sequence, &below, &live); err != nil {
					return err
				}
				d := commitstep.PathDigest(hash)
				var e *store.UsedPathError
				switch {
				case sequence != nil:
					e = &store.UsedPathError{Path: d, Sequence: *sequence, Live: live}
				case below != nil && uses[d].exact:
					e = &store.UsedPathError{Path: d, Below: true, Sequence: *below, Live: live}
				}
				// A live sequence is what a person has to see to first.
				if e != nil && (found == nil || e.Live && !found.Live) {
					found = e
				}
			}
			return rows.Err()
		})
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// exportPaths gives all that is remembered.
func (s *Store) exportPaths(ctx context.Context, give func(store.CopyItem) bool) (bool, error) {
	const portion = 1000
	after, first := uuid.Nil, true
	for {
		var items []store.CopyItem
		next := after
		err := s.read(ctx, func(b *pgx.Batch) {
			items = nil
			b.Queue(s.sql(`SELECT hash, sequence, below FROM {s}.paths WHERE hash > $1 OR $2 AND hash = $1 ORDER BY hash LIMIT 1000`), after, first).Query(func(rows pgx.Rows) error {
				for rows.Next() {
					var hash uuid.UUID
					var sequence, below *uuid.UUID
					if err := rows.Scan(&hash, &sequence, &below); err != nil {
						return err
					}
					p := &store.CopyPath{Path: commitstep.PathDigest(hash)}
					if sequence != nil {
						p.Sequence = *sequence
					}
					if below != nil {
						p.Below = *below
					}
					next = hash
					items = append(items, store.CopyItem{Path: p})
				}
				return rows.Err()
			})
		})
		if ok, err := giveAll(items, err, give); !ok || err != nil {
			return ok, err
		}
		if len(items) < portion {
			return true, nil
		}
		after, first = next, false
	}
}

func (im *importer) path(p *store.CopyPath) error {
	orNull := func(id uuid.UUID) *uuid.UUID {
		if id == uuid.Nil {
			return nil
		}
		return &id
	}
	return im.exec(`INSERT INTO {s}.paths (hash, sequence, below) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`, uuid.UUID(p.Path), orNull(p.Sequence), orNull(p.Below))
}
