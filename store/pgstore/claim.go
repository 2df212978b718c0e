package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const defaultClaim = 64

// freeSQL: nobody alive holds it. A claim that was made after this transaction
// began counts as alive, since its instance may have joined too late to be
// seen. $1 is the claiming instance, $2 its claims of unknown outcome.
const freeSQL = `(NOT s.held
	OR (s.claimed < now() AND NOT EXISTS (SELECT FROM {s}.instances i WHERE i.id = s.owner AND i.term = s.owner_term AND NOT i.dead))
	OR (s.owner = $1 AND s.claim = ANY($2::uuid[])))`

// readableSQL: nothing of it is set aside.
const readableSQL = `NOT EXISTS (SELECT FROM {s}.quarantine q WHERE q.sequence = s.id)`

func wantSQL(parked bool) string {
	if parked {
		return `s.state = 'parked' AND NOT s.park_told`
	}
	return `s.state IN ('pending', 'completed')`
}

// Claim gives owner up to f.Limit (default 64) sequences; see [store.Store].
// Sequences of one key are given together, so that a caller who goes on after
// the last key misses none; the limit may be passed by those of one key.
func (s *Store) Claim(ctx context.Context, owner uuid.UUID, f store.ClaimFilter) ([]commitstep.Live, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = defaultClaim
	}
	after := f.After
	for {
		var ids [][16]byte
		more := false
		if f.Match != nil {
			var last commitstep.Key
			var err error
			if ids, last, more, err = s.candidates(ctx, owner, f, after, limit); err != nil {
				return nil, err
			}
			if len(ids) == 0 {
				if !more {
					return nil, nil
				}
				after = &last
				continue
			}
			after = &last
		}
		out, took, err := s.take(ctx, owner, claimWhat{job: f.Job, after: f.After, parked: f.Parked, limit: limit, ids: ids})
		// Those that could not be read are set aside; then look further.
		if err != nil || len(out) > 0 || took == 0 && !more {
			return out, err
		}
	}
}

// claimWhat says which sequences a claim wants: the first ones in key order, or
// some by id.
type claimWhat struct {
	job    string
	after  *commitstep.Key
	parked bool
	any    bool // whatever the state
	limit  int
	ids    [][16]byte
}

// rangeSQL narrows a scan of sequences s to a job and to what follows a key, by
// the parameters from n on.
func rangeSQL(n int, job string, after *commitstep.Key) (string, []any) {
	sql, args := "", []any(nil)
	add := func(cond string, v any) {
		args = append(args, v)
		sql += fmt.Sprintf(" AND "+cond, n+len(args)-1)
	}
	if job != "" {
		add("s.job = $%d", toText(job))
	}
	if after == nil && job != "" {
		add(orderIndex+" >= $%d", cut(toText(job)+keySeparator))
	}
	if after != nil {
		t := sortText(*after)
		add(orderIndex+" >= $%d", cut(t))
		add(orderText+" > $%d", t)
	}
	return sql, args
}

// take claims what is free of what is wanted, durably, and returns it in key
// order. took counts also what was then found unreadable.
func (s *Store) take(ctx context.Context, owner uuid.UUID, w claimWhat) (out []commitstep.Live, took int, err error) {
	if err := s.mayRunNow(); err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	claims := slices.Clone(s.lost)
	s.mu.Unlock()
	known := len(claims)
	want := wantSQL(w.parked)
	if w.any {
		want = "true"
	}
	args := []any{owner, nil, nil}
	pick := ""
	if w.ids != nil {
		args = append(args, w.ids)
		pick = " AND s.id = ANY($4::uuid[])"
	} else {
		var more []any
		pick, more = rangeSQL(4, w.job, w.after)
		args = append(args, more...)
	}
	ok := want + ` AND ` + freeSQL + ` AND ` + readableSQL + ` AND EXISTS (SELECT FROM me)`
	me := `me AS (SELECT term FROM {s}.instances WHERE id = $1 AND NOT dead AND until > clock_timestamp()
			AND EXISTS (SELECT FROM {s}.store WHERE sealed_for = '' AND stamped = ''))`
	first := `FROM {s}.sequences s WHERE ` + ok + pick + ` ORDER BY ` + orderIndex + `, ` + orderText + ` LIMIT ` + fmt.Sprint(w.limit) + ` FOR UPDATE OF s`
	wait := `WITH ` + me + ` SELECT $2::uuid[], $3::uuid ` + first
	text := `WITH ` + me + `,
		c AS (SELECT s.id, s.key_hash, ` + orderIndex + ` AS prefix ` + first + ` SKIP LOCKED),
		ties AS (SELECT s.id FROM {s}.sequences s JOIN c ON c.prefix = ` + orderIndexS + ` AND c.key_hash = s.key_hash AND c.id <> s.id WHERE true AND ` + ok + ` FOR UPDATE OF s SKIP LOCKED),
		s AS (UPDATE {s}.sequences s SET owner = $1, owner_term = me.term, held = true, claim = $3, claimed = clock_timestamp(), epoch = s.epoch + 1
			FROM me WHERE s.id IN (SELECT id FROM c UNION ALL SELECT id FROM ties) RETURNING s.*)
		SELECT ` + liveColumns + `, d.steps FROM s LEFT JOIN {s}.documents d ON d.id = s.id LEFT JOIN {s}.instances i ON i.id = s.owner`
	var rows []claimedRow
	leased, stopped := false, false
	err = s.writeInOrder(ctx, func(b *pgx.Batch) {
		rows = nil
		again := len(claims) > known
		claim := uuid.New()
		claims = append(claims, claim)
		args[1], args[2] = claims, claim
		b.Queue(s.sql(reapSQL))
		if again {
			// A try whose answer was lost may still be at work, or not even have
			// begun. This one waits for the rows that it holds, and takes them over
			// by another name, so that what comes late finds them taken.
			b.Queue(s.sql(wait), args...)
		}
		b.Queue(s.sql(text), args...).Query(func(r pgx.Rows) error {
			for r.Next() {
				var c claimedRow
				if err := c.scan(r, &c.body); err != nil {
					return err
				}
				rows = append(rows, c)
			}
			return r.Err()
		})
		b.Queue(s.sql(`SELECT EXISTS (SELECT FROM {s}.instances WHERE id = $1 AND NOT dead AND until > clock_timestamp()),
			EXISTS (SELECT FROM {s}.store WHERE sealed_for <> '' OR stamped <> '')`), owner).
			QueryRow(func(r pgx.Row) error { return r.Scan(&leased, &stopped) })
	})
	tries := claims[known:]
	if err != nil {
		s.lose(tries...)
		return nil, 0, fmt.Errorf("claim: %w", err)
	}
	s.lose(tries[:len(tries)-1]...)
	if len(rows) == 0 && !leased {
		return nil, 0, noLease(owner)
	}
	if len(rows) == 0 && stopped {
		if err := s.refreshInfo(ctx); err != nil {
			return nil, 0, err
		}
		return nil, 0, s.mayRunNow()
	}
	out, err = s.claimed(ctx, owner, rows)
	return out, len(rows), err
}

// claimedRow is a claimed sequence as it came from the database.
type claimedRow struct {
	liveRow
	body []byte
}

// claimed reads what was claimed, remembers it, and sets aside what cannot be
// read.
func (s *Store) claimed(ctx context.Context, owner uuid.UUID, rows []claimedRow) ([]commitstep.Live, error) {
	var out []commitstep.Live
	holds := map[uuid.UUID]*held{}
	var short [][16]byte
	for i := range rows {
		r := &rows[i]
		live, err := r.live()
		h := &held{id: r.id, epoch: uint64(r.epoch), owner: owner, steps: live.Steps, marks: true}
		if err == nil && r.body != nil {
			if h.page, err = openPage(r.id, 0, 0, r.body); err == nil {
				short = append(short, r.id)
			}
		}
		if isFormat(err) {
			if err := s.setAside(ctx, r.liveRow, err); err != nil {
				return nil, err
			}
			if err := s.Release(ctx, h.fence()); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, live)
		holds[r.id] = h
	}
	if len(short) > 0 {
		all, err := s.progressOf(ctx, short)
		if err != nil {
			// The claims stand. They are served from the database then.
			if !isFormat(err) {
				s.giveBack(ctx, out)
				return nil, err
			}
			all = nil
		}
		for _, id := range short {
			h := holds[id]
			if all == nil {
				h.page = nil
				continue
			}
			h.progress, h.marks = all.page(id, 0, len(h.page))
		}
	}
	s.mu.Lock()
	for id, h := range holds {
		h.term = s.terms[owner]
		if old := s.held[id]; old != nil && old.epoch > h.epoch {
			continue
		}
		s.hold(h)
	}
	s.mu.Unlock()
	slices.SortFunc(out, func(a, b commitstep.Live) int {
		if c := a.Key.Compare(b.Key); c != 0 {
			return c
		}
		return slices.Compare(a.ID[:], b.ID[:])
	})
	return out, nil
}

// giveBack releases claims that the caller will not hear of.
func (s *Store) giveBack(ctx context.Context, list []commitstep.Live) {
	for _, l := range list {
		if err := s.Release(context.WithoutCancel(ctx), store.Fence{ID: l.ID, Epoch: l.Epoch, Owner: l.Owner.ID}); err != nil {
			s.o.Log.Warn("a claim could not be given back; it ends with the lease", "store", s.location, "sequence", l.ID, "error", err)
		}
	}
}

// candidates lists sequences that a filter's function selects, in key order and
// whole keys, about limit of them.
func (s *Store) candidates(ctx context.Context, owner uuid.UUID, f store.ClaimFilter, after *commitstep.Key, limit int) (ids [][16]byte, last commitstep.Key, more bool, err error) {
	const portion = 512
	type row struct {
		id  uuid.UUID
		key commitstep.Key
	}
	var rows []row
	s.mu.Lock()
	lost := slices.Clone(s.lost)
	s.mu.Unlock()
	cond, args := rangeSQL(3, f.Job, after)
	text := `SELECT s.id, s.job, s.dataset FROM {s}.sequences s WHERE ` + wantSQL(f.Parked) + ` AND ` + freeSQL + ` AND ` + readableSQL + cond +
		` ORDER BY ` + orderIndex + `, ` + orderText + ` FETCH FIRST ` + fmt.Sprint(portion) + ` ROWS WITH TIES`
	err = s.writeInOrder(ctx, func(b *pgx.Batch) {
		rows = nil
		b.Queue(s.sql(reapSQL))
		b.Queue(s.sql(text), append([]any{owner, lost}, args...)...).Query(func(r pgx.Rows) error {
			for r.Next() {
				var x row
				var job, dataset string
				if err := r.Scan(&x.id, &job, &dataset); err != nil {
					return err
				}
				x.key = commitstep.Key{Job: fromText(job), Dataset: fromText(dataset)}
				rows = append(rows, x)
			}
			return r.Err()
		})
	})
	if err != nil {
		return nil, last, false, fmt.Errorf("claim: %w", err)
	}
	more = len(rows) >= portion
	for _, r := range rows {
		if r.key != last && len(ids) >= limit {
			more = true
			break
		}
		last = r.key
		if f.Match(r.key.Dataset) {
			ids = append(ids, r.id)
		}
	}
	return ids, last, more, nil
}

// ClaimOne claims the sequence of a key, live or else cleaning, whatever its
// state. ErrNotFound, ErrDamaged, or *BusyError, also when owner holds it.
func (s *Store) ClaimOne(ctx context.Context, owner uuid.UUID, key commitstep.Key) (commitstep.Live, error) {
	for range maxExplain {
		l, err := s.Get(ctx, key)
		if err != nil {
			return commitstep.Live{}, err
		}
		out, _, err := s.take(ctx, owner, claimWhat{any: true, limit: 1, ids: [][16]byte{l.ID}})
		if err != nil {
			return commitstep.Live{}, err
		}
		for i := range out {
			if out[i].ID == l.ID {
				return out[i], nil
			}
		}
		if err := s.busy(ctx, key, l.ID); err != nil {
			return commitstep.Live{}, err
		}
		// It ended, or its holder did, between the look and the claim.
	}
	return commitstep.Live{}, fmt.Errorf("dataset %s: it changes hands faster than it can be claimed: %w", key, commitstep.ErrBusy)
}

// mayRunNow refuses to run anything of a stamped or sealed store.
func (s *Store) mayRunNow() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case s.info.Stamped != "":
		return s.stampedErr(s.info.Stamped, s.info.SealedFor)
	case s.info.SealedFor != "":
		return s.sealedErr(s.info.SealedFor)
	}
	return nil
}

// isFormat reports a record that cannot be read: damaged, or newer.
func isFormat(err error) bool {
	return errors.Is(err, commitstep.ErrDamaged) || errors.Is(err, commitstep.ErrNewerFormat)
}
