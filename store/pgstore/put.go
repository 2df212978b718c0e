package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/internal/records"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// inlineSteps and inlineBytes are the most steps, and their bytes, that are kept
// beside the header: what the history keeps anyway.
const (
	inlineSteps = store.HistoryDetailSteps
	inlineBytes = 256 << 10
)

// pageBatch is how many bytes of pages one transaction of a long put carries,
// about.
const pageBatch = 2 << 20

// Put stores a sequence, claimed by owner with epoch 1; see [store.Store].
func (s *Store) Put(ctx context.Context, d store.Draft, owner uuid.UUID) (commitstep.Live, error) {
	if err := d.Key.Validate(); err != nil {
		return commitstep.Live{}, err
	}
	if d.ID == uuid.Nil {
		return commitstep.Live{}, fmt.Errorf("pgstore: put %s: a sequence needs an id", d.Key)
	}
	if err := s.mayPut(); err != nil {
		return commitstep.Live{}, err
	}
	p := &putting{s: s, d: d, owner: owner}
	if err := p.readPages(ctx); err != nil {
		p.discard(ctx)
		return commitstep.Live{}, err
	}
	h, err := d.Header()
	if err == nil {
		err = p.setHeader(h)
	}
	if err != nil {
		p.discard(ctx)
		return commitstep.Live{}, err
	}
	if d.Roots != nil {
		p.roots = d.Roots()
	}
	for range maxExplain {
		if h.AcceptReusedPaths != "" && len(p.roots) > 0 {
			err = s.putAccepting(ctx, p)
		} else {
			err = s.submit(ctx, &op{kind: opPut, put: p})
		}
		if err == nil {
			return p.stored(), nil
		}
		if !errors.Is(err, errRefused) {
			break
		}
		var live commitstep.Live
		if live, err = p.explain(context.WithoutCancel(ctx)); !errors.Is(err, errRefused) {
			if err != nil {
				p.discard(ctx)
			}
			return live, err
		}
	}
	if errors.Is(err, errRefused) {
		err = fmt.Errorf("store %s: put %s: refused %d times for reasons that were gone at once; nothing was stored", s.location, d.Key, maxExplain)
	}
	if errors.Is(err, commitstep.ErrOutcomeUnknown) {
		s.lose(h.ID)
	} else {
		p.discard(ctx)
	}
	return commitstep.Live{}, err
}

// mayPut refuses before anything is read when the store is known to refuse.
func (s *Store) mayPut() error {
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

// putting is one put on its way.
type putting struct {
	s     *Store
	d     store.Draft
	owner uuid.UUID

	steps  int
	pages  int
	first  []commitstep.Step // while all of it is short
	inline []byte
	known  bool // the id is here already: its pages are not written again
	began  bool // pages are in the database
	batch  []pageRecord
	bytes  int

	header   *commitstep.Header
	roots    []commitstep.StagingRoot
	document []byte
}

type pageRecord struct {
	n    int32
	body []byte
}

// stepsKey and headerKey are what checksums of documents cover.
func headerKey(id uuid.UUID) []byte { return append(id[:len(id):len(id)], 'h') }
func pageKey(id uuid.UUID, n int) []byte {
	return append(id[:len(id):len(id)], 'p', byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

func (p *putting) readPages(ctx context.Context) error {
	last := store.PageSize
	var buf []byte
	for steps, err := range p.d.Pages {
		if err != nil {
			return err
		}
		if len(steps) == 0 {
			continue
		}
		if last != store.PageSize || len(steps) > store.PageSize {
			return fmt.Errorf("pgstore: put %s: pages must have %d steps, all but the last", p.d.Key, store.PageSize)
		}
		last = len(steps)
		for i := range steps {
			if steps[i].Index != p.steps+i {
				return fmt.Errorf("pgstore: put %s: step %d calls itself %d", p.d.Key, p.steps+i, steps[i].Index)
			}
		}
		if buf, err = records.AppendSteps(buf[:0], steps); err != nil {
			return err
		}
		sealed := commitstep.Seal(commitstep.RecordPage, pageKey(p.d.ID, p.pages), buf)
		if p.pages == 0 && len(steps) <= inlineSteps && len(buf) <= inlineBytes {
			p.inline, p.first = sealed, slices.Clone(steps)
		} else {
			if p.inline != nil {
				p.page(0, p.inline)
				p.inline, p.first = nil, nil
			}
			p.page(p.pages, sealed)
		}
		p.pages++
		p.steps += len(steps)
		if p.bytes >= pageBatch {
			if err := p.writePages(ctx); err != nil {
				return err
			}
		}
	}
	if p.steps == 0 {
		return fmt.Errorf("pgstore: put %s: a sequence needs at least one step", p.d.Key)
	}
	return p.writePages(ctx)
}

func (p *putting) page(n int, body []byte) {
	p.batch = append(p.batch, pageRecord{int32(n), body})
	p.bytes += len(body)
}

// writePages stores pages that nothing refers to yet. The row in puts keeps
// them from being collected while the owner's lease lasts.
func (p *putting) writePages(ctx context.Context) error {
	if len(p.batch) == 0 {
		return nil
	}
	if !p.began {
		known := false
		err := p.s.read(ctx, func(b *pgx.Batch) {
			b.Queue(p.s.sql(`SELECT EXISTS (SELECT FROM {s}.documents WHERE id = $1)`), p.d.ID).QueryRow(func(r pgx.Row) error { return r.Scan(&known) })
		})
		if err != nil {
			return err
		}
		p.known, p.began = known, true
	}
	if p.known {
		p.batch, p.bytes = p.batch[:0], 0
		return nil
	}
	ns := make([]int32, len(p.batch))
	bodies := make([][]byte, len(p.batch))
	for i, r := range p.batch {
		ns[i], bodies[i] = r.n, r.body
	}
	err := p.s.write(ctx, func(b *pgx.Batch) {
		// Rests of an earlier try with this id are no rests any more. This waits
		// for a collection that is removing them.
		b.Queue(p.s.sql(`DELETE FROM {s}.garbage WHERE sequence = $1`), p.d.ID)
		b.Queue(p.s.sql(`INSERT INTO {s}.puts (sequence, owner, started) VALUES ($1, $2, now()) ON CONFLICT DO NOTHING`), p.d.ID, p.owner)
		b.Queue(p.s.sql(`INSERT INTO {s}.pages AS p (sequence, page, body) SELECT $1, t.n, t.body FROM unnest($2::int[], $3::bytea[]) AS t(n, body)
			ON CONFLICT (sequence, page) DO UPDATE SET body = EXCLUDED.body WHERE EXISTS (SELECT FROM {s}.puts u WHERE u.sequence = p.sequence)`), p.d.ID, ns, bodies)
	})
	p.batch, p.bytes = p.batch[:0], 0
	return err
}

// discard gives up the pages of a put that did not become a sequence. If that
// fails, they are collected once the owner's lease has ended.
func (p *putting) discard(ctx context.Context) {
	if !p.began || p.known {
		return
	}
	err := p.s.write(context.WithoutCancel(ctx), func(b *pgx.Batch) {
		b.Queue(p.s.sql(`WITH gone AS (DELETE FROM {s}.puts WHERE sequence = $1 RETURNING sequence)
			INSERT INTO {s}.garbage (sequence) SELECT sequence FROM gone ON CONFLICT DO NOTHING`), p.d.ID)
	})
	if err != nil {
		p.s.o.Log.Warn("the pages of a refused plan are left to be collected", "store", p.s.location, "sequence", p.d.ID, "error", err)
	}
	p.s.collectSoon()
}

func (p *putting) setHeader(h commitstep.Header) error {
	if h.ID != p.d.ID || h.Key != p.d.Key {
		return fmt.Errorf("pgstore: put %s: the header is of sequence %s of dataset %s", p.d.Key, h.ID, h.Key)
	}
	if h.Steps != p.steps {
		return fmt.Errorf("pgstore: put %s: the header counts %d steps, the pages have %d", p.d.Key, h.Steps, p.steps)
	}
	for _, l := range h.Locks {
		if err := commitstep.CheckName("lock", l); err != nil {
			return err
		}
	}
	if len(h.Locks) > commitstep.MaxLocks {
		return fmt.Errorf("pgstore: put %s: %d locks are more than the %d a sequence may hold", p.d.Key, len(h.Locks), commitstep.MaxLocks)
	}
	if h.PlanID != "" {
		if err := commitstep.CheckName("id", h.PlanID); err != nil {
			return err
		}
	}
	h.PageSize = store.PageSize
	h.Created = h.Created.Round(0).UTC()
	h.Cleanup = slices.Clone(h.Cleanup)
	for i := range h.Cleanup {
		h.Cleanup[i].Index = h.Steps + i
	}
	p.header = &h
	var err error
	p.document, err = sealHeader(&h)
	return err
}

// locksOf are the locks of a sequence: those it names, and those of the
// watermarks it moves, which a watermark step names too.
func locksOf(h *commitstep.Header) []string {
	if len(h.Moves) == 0 {
		return h.Locks
	}
	locks := slices.Clone(h.Locks)
	for _, m := range h.Moves {
		locks = append(locks, m.Lock())
	}
	slices.Sort(locks)
	return slices.Compact(locks)
}

// queuePuts queues the statements of several puts. The first one stores what
// stands in nobody's way; the second looks, with what is committed by then, at
// what the first cannot: it takes back what must not be there.
func (s *Store) queuePuts(b *pgx.Batch, puts []*op) {
	puts = slices.Clone(puts)
	defer s.queuePaths(b, puts)
	// In one order everywhere, so that two transactions wait, and not both.
	slices.SortFunc(puts, func(a, b *op) int {
		x, y := keyHash(a.put.d.Key), keyHash(b.put.d.Key)
		return slices.Compare(x[:], y[:])
	})
	n := len(puts)
	byID := make(map[uuid.UUID][]*op, n)
	var (
		ids, keys, owners          = make([][16]byte, n), make([][16]byte, n), make([][16]byte, n)
		refs                       = make([]*[16]byte, n)
		jobs, sets, plans, hashes  = make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		created                    = make([]time.Time, n)
		steps, stages              = make([]int32, n), make([]int32, n)
		long                       = make([]bool, n)
		documents, inline          = make([][]byte, n), make([][]byte, n)
		lockSeq, lockKey           [][16]byte
		lockName                   []string
		planSeq, planKey           [][16]byte
		moveSeq, moveKey, moveTok  [][16]byte
		moveWas                    []*string
		anyLong, needsLocks, check bool
	)
	for i, o := range puts {
		p := o.put
		h := p.header
		byID[h.ID] = append(byID[h.ID], o)
		ids[i], keys[i], owners[i] = h.ID, keyHash(h.Key), p.owner
		jobs[i], sets[i], plans[i], hashes[i] = toText(h.Job), toText(h.Dataset), toText(h.PlanID), ""
		created[i], steps[i], stages[i] = h.Created, int32(h.Steps), int32(h.Stages)
		documents[i], inline[i] = p.document, p.inline
		long[i] = p.inline == nil
		anyLong = anyLong || long[i]
		for _, l := range locksOf(h) {
			lockSeq, lockKey, lockName = append(lockSeq, h.ID), append(lockKey, lockHash(l)), append(lockName, toText(l))
			needsLocks, check = true, true
		}
		if h.PlanID != "" {
			ref := [16]byte(planHash(h.Key, h.PlanID))
			refs[i], hashes[i] = &ref, h.PlanHash
			planSeq, planKey = append(planSeq, h.ID), append(planKey, ref)
			check = true
		}
		for _, m := range h.Moves {
			moveSeq, moveKey, moveTok = append(moveSeq, h.ID), append(moveKey, watermarkHash(m.WatermarkKey)), append(moveTok, m.Token)
			moveWas = append(moveWas, watermarkText(m.From))
			check = true
		}
	}
	var st statement
	st.with("p", `SELECT * FROM unnest(`+st.arg(ids, "uuid[]")+`, `+st.arg(keys, "uuid[]")+`, `+st.arg(owners, "uuid[]")+`, `+st.arg(refs, "uuid[]")+`, `+
		st.arg(jobs, "text[]")+`, `+st.arg(sets, "text[]")+`, `+st.arg(plans, "text[]")+`, `+st.arg(hashes, "text[]")+`, `+st.arg(created, "timestamptz[]")+`, `+
		st.arg(steps, "int[]")+`, `+st.arg(stages, "int[]")+`, `+st.arg(long, "bool[]")+`, `+st.arg(documents, "bytea[]")+`, `+st.arg(inline, "bytea[]")+
		`) AS t(id, key_hash, owner, plan_ref, job, dataset, plan_id, plan_hash, created, steps, stages, long, header, body)`)
	locks, ready := `NULL::uuid[]`, ``
	if needsLocks {
		st.with("lk", `SELECT * FROM unnest(`+st.arg(lockSeq, "uuid[]")+`, `+st.arg(lockKey, "uuid[]")+`, `+st.arg(lockName, "text[]")+`) AS t(id, hash, name)`)
		locks = `(SELECT array_agg(lk.hash) FROM lk WHERE lk.id = p.id)`
	}
	if anyLong {
		ready = ` AND (NOT p.long OR EXISTS (SELECT FROM {s}.puts u WHERE u.sequence = p.id))`
	}
	st.with("s", `INSERT INTO {s}.sequences (id, key_hash, job, dataset, plan_id, plan_hash, plan_ref, created, steps, stages, long, locks, state, owner, owner_term, claim, claimed, updated)
		SELECT p.id, p.key_hash, p.job, p.dataset, p.plan_id, p.plan_hash, p.plan_ref, p.created, p.steps, p.stages, p.long, `+locks+`, 'pending', p.owner, i.term, p.id, clock_timestamp(), now()
		FROM p JOIN {s}.instances i ON i.id = p.owner AND NOT i.dead AND i.until > clock_timestamp()
		WHERE EXISTS (SELECT FROM {s}.store WHERE sealed_for = '' AND stamped = '')
			AND NOT EXISTS (SELECT FROM {s}.quarantine q WHERE q.key_hash = p.key_hash OR NOT q.name_known)`+ready+`
		ORDER BY p.key_hash ON CONFLICT DO NOTHING RETURNING id, owner_term`)
	st.with("d", `INSERT INTO {s}.documents (id, header, steps) SELECT p.id, p.header, p.body FROM p WHERE (p.id IN (SELECT id FROM s)) IS TRUE`)
	if needsLocks {
		st.with("l", `INSERT INTO {s}.locks (hash, lock, sequence) SELECT lk.hash, lk.name, lk.id FROM lk WHERE (lk.id IN (SELECT id FROM s)) IS TRUE ORDER BY lk.hash ON CONFLICT DO NOTHING`)
	}
	if anyLong {
		st.with("u", `DELETE FROM {s}.puts u USING s WHERE u.sequence = s.id`)
	}
	b.Queue(s.sql(st.text(`SELECT id, owner_term FROM s`)), st.args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var id uuid.UUID
			var term int32
			if err := rows.Scan(&id, &term); err != nil {
				return err
			}
			for _, o := range byID[id] {
				o.ok = true
			}
		}
		return rows.Err()
	})
	if !check {
		return
	}
	st = statement{}
	var bad []string
	if len(lockSeq) > 0 {
		bad = append(bad, `SELECT t.id FROM unnest(`+st.arg(lockSeq, "uuid[]")+`, `+st.arg(lockKey, "uuid[]")+`) AS t(id, hash)
			WHERE NOT EXISTS (SELECT FROM {s}.locks l WHERE l.hash = t.hash AND l.sequence = t.id)`)
	}
	if len(planSeq) > 0 {
		bad = append(bad, `SELECT t.id FROM unnest(`+st.arg(planSeq, "uuid[]")+`, `+st.arg(planKey, "uuid[]")+`) AS t(id, hash) JOIN {s}.plan_ids i ON i.hash = t.hash`)
	}
	if len(moveSeq) > 0 {
		bad = append(bad, `SELECT t.id FROM unnest(`+st.arg(moveSeq, "uuid[]")+`, `+st.arg(moveKey, "uuid[]")+`, `+st.arg(moveTok, "uuid[]")+`, `+st.arg(moveWas, "text[]")+`) AS t(id, hash, token, was)
			LEFT JOIN {s}.watermarks w ON w.hash = t.hash WHERE w.value IS DISTINCT FROM t.was`)
	}
	st.with("bad", joinUnion(bad))
	// Only what this very transaction has stored: the same sequence, stored
	// before, may have moved its watermarks already.
	st.with("gone", `DELETE FROM {s}.sequences s USING bad WHERE s.id = bad.id AND s.xmin = pg_current_xact_id()::xid RETURNING s.id, s.locks, s.long`)
	st.with("d", `DELETE FROM {s}.documents d USING gone WHERE d.id = gone.id`)
	st.with("l", `DELETE FROM {s}.locks l USING (SELECT id, unnest(locks) AS hash FROM gone) g WHERE l.hash = g.hash AND l.sequence = g.id`)
	st.with("u", `INSERT INTO {s}.garbage (sequence) SELECT id FROM gone WHERE long ON CONFLICT DO NOTHING`)
	b.Queue(s.sql(st.text(`SELECT id FROM gone`)), st.args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var id uuid.UUID
			if err := rows.Scan(&id); err != nil {
				return err
			}
			for _, o := range byID[id] {
				o.ok = false
			}
		}
		return rows.Err()
	})
}

func joinUnion(parts []string) string {
	out := parts[0]
	for _, p := range parts[1:] {
		out += "\nUNION " + p
	}
	return out
}

// stored is the answer to a put that was carried out, and remembers it.
func (p *putting) stored() commitstep.Live {
	s, h := p.s, p.header
	live := commitstep.Live{Header: *h, Condition: commitstep.Condition{State: commitstep.Pending, ParkStep: -1, Version: 1, Epoch: 1, Updated: s.now()}}
	live.Owner.ID = p.owner
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.terms[p.owner]
	if t != nil {
		live.Owner = t.instance
	}
	k := &held{id: h.ID, epoch: 1, owner: p.owner, term: t, steps: h.Steps}
	if p.inline != nil {
		k.page = p.first
		k.progress = make([]commitstep.Progress, len(p.first))
	}
	s.hold(k)
	return live
}
