package pgstore

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/internal/records"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Import fills an empty store; see [store.Copier]. A stamp says durably that a
// copy is on its way in before the first of it is asked for; all of it and the
// end of the stamp are one transaction.
func (s *Store) Import(ctx context.Context, items iter.Seq2[store.CopyItem, error]) (done bool, err error) {
	if err := s.open(); err != nil {
		return false, err
	}
	sent := false
	err = s.repeat(ctx, true, func(ctx context.Context, l limit) error {
		im := &importer{s: s, ctx: ctx, limit: l, batch: &pgx.Batch{}}
		defer im.close()
		done, err = im.run(items)
		switch {
		case err != nil:
			if _, ours := err.(*verdictError); ours || classify(err) != unknown {
				return err
			}
			return &acquireError{err} // the commit was never sent
		case done:
			done = !sent // by the try before, whose answer was lost
			return nil
		}
		sent = true
		return im.tx.Commit(context.WithoutCancel(ctx))
	})
	if err != nil {
		return false, err
	}
	return done, s.refreshInfo(ctx)
}

// importer writes the items of a copy, several with one request.
type importer struct {
	s     *Store
	ctx   context.Context
	limit limit // for the connection only: a copy takes its time
	conn  *pgxpool.Conn
	tx    pgx.Tx
	from  *store.CopyStore
	batch *pgx.Batch
	size  int

	// The sequence whose pages come, and its header.
	header *commitstep.Header
	live   *commitstep.Live
	pages  int
	inline []byte
}

func (im *importer) run(items iter.Seq2[store.CopyItem, error]) (done bool, err error) {
	for it, err := range items {
		switch {
		case err != nil:
			return false, answered(err)
		case im.from == nil && it.Store == nil:
			return false, answered(errors.New("pgstore: import: the copy does not start with its store"))
		case it.Store != nil:
			if done, err := im.begin(it.Store); done || err != nil {
				return done, answered(err)
			}
			if err := im.open(); err != nil {
				return false, err
			}
		default:
			if err := im.item(it); err != nil {
				return false, err
			}
		}
	}
	if im.from == nil {
		return false, answered(errors.New("pgstore: import: the copy does not start with its store"))
	}
	return false, im.end()
}

// begin stamps the store, unless the copy is in it already. What is being
// written comes before, and is seen.
func (im *importer) begin(from *store.CopyStore) (done bool, err error) {
	im.from = from
	err = im.s.session(im.ctx, func(ctx context.Context, tx pgx.Tx) error {
		done = false
		if _, err := tx.Exec(ctx, im.s.sql(`LOCK TABLE {s}.instances, {s}.sequences, {s}.watermarks IN SHARE ROW EXCLUSIVE MODE`)); err != nil {
			return err
		}
		var copied *uuid.UUID
		var stamp string
		var some bool
		if err := tx.QueryRow(ctx, im.s.sql(`SELECT copied_from, stamped,
			EXISTS (SELECT FROM {s}.sequences) OR EXISTS (SELECT FROM {s}.history) OR EXISTS (SELECT FROM {s}.watermarks)
			OR EXISTS (SELECT FROM {s}.audit) OR EXISTS (SELECT FROM {s}.plan_ids) OR EXISTS (SELECT FROM {s}.puts) OR EXISTS (SELECT FROM {s}.paths)
			FROM {s}.store FOR UPDATE`)).Scan(&copied, &stamp, &some); err != nil {
			return err
		}
		same := copied != nil && *copied == from.ID
		switch {
		case same && !isUnfinished(stamp):
			done = true
			return nil
		case some || isUnfinished(stamp) && !same:
			return answered(fmt.Errorf("store %s: %w; copy into a new schema", im.s.location, store.ErrNotEmpty))
		case stamp != "" && !same:
			return answered(im.s.stampedErr(stamp, ""))
		}
		_, err := tx.Exec(ctx, im.s.sql(`UPDATE {s}.store SET stamped = $1, copied_from = $2`), toText(unfinished+from.Location+"; repeat `commitstep store copy`"), from.ID)
		return err
	})
	return done, err
}

// open begins the transaction of all items. It lasts as long as the copy takes.
func (im *importer) open() (err error) {
	if im.tx != nil {
		return answered(errors.New("pgstore: import: the copy starts twice"))
	}
	if im.conn, err = im.s.acquire(im.ctx, im.limit); err != nil {
		return err
	}
	if im.tx, err = im.conn.Begin(im.ctx); err != nil {
		return &acquireError{err}
	}
	if _, err := im.tx.Exec(im.ctx, settingsSQL, im.s.settings...); err != nil {
		return err
	}
	_, err = im.tx.Exec(im.ctx, `SELECT set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '0', true)`)
	return err
}

// close ends what was not committed.
func (im *importer) close() {
	if im.tx != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(im.ctx), closeBudget)
		defer cancel()
		_ = im.tx.Rollback(ctx)
	}
	if im.conn != nil {
		im.conn.Release()
	}
}

// exec queues a statement; many travel together.
func (im *importer) exec(sql string, args ...any) error {
	im.batch.Queue(im.s.sql(sql), args...)
	for _, a := range args {
		if b, ok := a.([]byte); ok {
			im.size += len(b)
		}
	}
	if im.batch.Len() < 500 && im.size < 1<<20 {
		return nil
	}
	return im.drain()
}

// drain sends what is queued.
func (im *importer) drain() error {
	if im.batch.Len() == 0 {
		return nil
	}
	b := im.batch
	im.batch, im.size = &pgx.Batch{}, 0
	return im.tx.SendBatch(im.ctx, b).Close()
}

func (im *importer) item(it store.CopyItem) error {
	if it.Page != nil {
		return im.page(it.Page)
	}
	if err := im.flush(); err != nil {
		return err
	}
	switch {
	case it.Sequence != nil:
		h := it.Sequence.Header
		im.header, im.live = &h, it.Sequence
		return nil
	case it.Watermark != nil:
		v := *it.Watermark
		var sequence *uuid.UUID
		if v.Sequence != uuid.Nil {
			sequence = &v.Sequence
		}
		return im.exec(`INSERT INTO {s}.watermarks (hash, job, source, value, token, sequence, set_at, record) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
			watermarkHash(v.WatermarkKey), toText(v.Job), toText(v.Source), *watermarkText(v.Watermark), v.Token, sequence, v.SetAt, sealWatermark(v))
	case it.Accepted != nil:
		return im.exec(`INSERT INTO {s}.accepted (hash, job, adoption, at) VALUES ($1, $2, $3, $4)`, jobHash(it.Accepted.Job), toText(it.Accepted.Job), it.Accepted.Adoption, it.Accepted.At)
	case it.Plan != nil:
		p := it.Plan
		return im.exec(`INSERT INTO {s}.plan_ids (hash, job, dataset, plan_id, plan_hash, sequence, state) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
			planHash(p.Key, p.PlanID), toText(p.Key.Job), toText(p.Key.Dataset), toText(p.PlanID), p.Hash, p.Sequence, string(p.State))
	case it.History != nil:
		return im.history(it.History)
	case it.Attempts != nil:
		return im.attempts(it.Attempts)
	case it.Path != nil:
		return im.path(it.Path)
	case it.Audit != nil:
		args, err := auditRow(uuid.New(), *it.Audit)
		if err != nil {
			return err
		}
		return im.exec(putAuditSQL, args...)
	}
	return nil
}

func (im *importer) history(e *store.HistoryEntry) error {
	h := commitstep.Header{ID: e.ID, Key: e.Key, PlanID: e.PlanID, PlanHash: e.PlanHash, Created: e.Created, Steps: e.Steps, Stages: e.Stages, PageSize: store.PageSize,
		FirstWatermark: -1, Locks: e.Locks, Moves: e.Moves, Cleanup: e.Cleanup, AcceptReusedPaths: e.AcceptReusedPaths}
	im.header, im.live = &h, nil
	if e.Detail != nil {
		b, err := records.AppendSteps(nil, e.Detail)
		if err != nil {
			return answered(err)
		}
		im.inline = commitstep.Seal(commitstep.RecordPage, pageKey(e.ID, 0), b)
	}
	if e.CleanupReport != "" {
		if err := im.exec(`INSERT INTO {s}.cleanups (sequence, at, report) VALUES ($1, $2, $3)`, e.ID, e.Ended, toText(e.CleanupReport)); err != nil {
			return err
		}
	}
	return im.exec(`INSERT INTO {s}.history `+historyColumns+` VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
		e.ID, toText(e.Job), toText(e.Dataset), toText(e.PlanID), string(e.State), e.Created, e.Ended, e.Steps, e.Stages, int64(e.Epoch), toText(e.Message),
		sealHistory(e.ID, records.HistoryTail{State: e.State, Ended: e.Ended, Epoch: e.Epoch, Notes: e.Notes, Message: e.Message}))
}

func (im *importer) page(p *store.CopyPage) error {
	if im.header == nil || im.header.ID != p.Sequence || p.Number != im.pages {
		return answered(fmt.Errorf("pgstore: import: page %d of sequence %s is out of place", p.Number, p.Sequence))
	}
	b, err := records.AppendSteps(nil, p.Steps)
	if err != nil {
		return answered(err)
	}
	sealed := commitstep.Seal(commitstep.RecordPage, pageKey(p.Sequence, p.Number), b)
	im.pages++
	if p.Number == 0 && im.header.Steps <= inlineSteps && len(b) <= inlineBytes {
		im.inline = sealed
	} else if err := im.exec(`INSERT INTO {s}.pages (sequence, page, body) VALUES ($1, $2, $3)`, p.Sequence, p.Number, sealed); err != nil {
		return err
	}
	return im.progress(p)
}

// progress writes what is known of a page's steps.
func (im *importer) progress(p *store.CopyPage) error {
	bits := pgtype.Bits{Bytes: make([]byte, store.PageSize/8), Len: store.PageSize, Valid: true}
	marked := false
	for i, x := range p.Progress {
		step := p.Number*store.PageSize + i
		if x.Done {
			bits.Bytes[i/8] |= 0x80 >> (i % 8)
			marked = true
		}
		if x.Note != nil || x.NoReturn != nil {
			var note, mark []byte
			if x.Note != nil {
				note = commitstep.Seal(commitstep.RecordProgress, noteKey(p.Sequence, step, 'n'), x.Note)
			}
			if x.NoReturn != nil {
				mark = commitstep.Seal(commitstep.RecordProgress, noteKey(p.Sequence, step, 'r'), x.NoReturn)
			}
			if err := im.exec(`INSERT INTO {s}.step_notes (sequence, step, note, no_return) VALUES ($1, $2, $3, $4)`, p.Sequence, step, note, mark); err != nil {
				return err
			}
		}
		if err := im.attemptsAt(p.Sequence, step, x); err != nil {
			return err
		}
	}
	if !marked {
		return nil
	}
	return im.exec(`INSERT INTO {s}.progress (sequence, page, done) VALUES ($1, $2, $3::bit(512))`, p.Sequence, p.Number, bits)
}

// flush writes the document, and the row, of the sequence whose pages have come.
func (im *importer) flush() error {
	h, l := im.header, im.live
	if h == nil {
		return nil
	}
	document, err := sealHeader(h)
	if err != nil {
		return answered(err)
	}
	inline, pages := im.inline, im.pages
	im.header, im.live, im.inline, im.pages = nil, nil, nil, 0
	if l != nil {
		if want := (h.Steps + store.PageSize - 1) / store.PageSize; pages != want {
			return answered(fmt.Errorf("pgstore: import: sequence %s of dataset %s came with %d pages of %d", h.ID, h.Key, pages, want))
		}
	}
	// A cleaning sequence is in the history too, with the same header.
	if err := im.exec(`INSERT INTO {s}.documents (id, header, steps) VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE SET header = EXCLUDED.header, steps = coalesce(EXCLUDED.steps, documents.steps)`,
		h.ID, document, inline); err != nil || l == nil {
		return err
	}
	return im.sequence(l, inline == nil)
}

func (im *importer) sequence(l *commitstep.Live, long bool) error {
	var owner *uuid.UUID
	if l.Owner.ID != uuid.Nil {
		owner = &l.Owner.ID
		if err := im.exec(`INSERT INTO {s}.instances (id, term, name, host, pid, joined, until, dead) VALUES ($1, 0, $2, $3, $4, now(), now(), true) ON CONFLICT DO NOTHING`,
			l.Owner.ID, toText(l.Owner.Name), toText(l.Owner.Host), l.Owner.PID); err != nil {
			return err
		}
	}
	var hashes [][16]byte
	slot := uuid.Nil
	if l.Cleaning {
		slot = l.ID
	} else {
		for _, lock := range locksOf(&l.Header) {
			hashes = append(hashes, lockHash(lock))
			if err := im.exec(`INSERT INTO {s}.locks (hash, lock, sequence) VALUES ($1, $2, $3)`, lockHash(lock), toText(lock), l.ID); err != nil {
				return err
			}
		}
	}
	var ref *uuid.UUID
	hash := ""
	if l.PlanID != "" {
		hash = l.PlanHash
		r := planHash(l.Key, l.PlanID)
		ref = &r
	}
	declared := make([]int32, len(l.DeclaredPublished))
	for i, d := range l.DeclaredPublished {
		declared[i] = int32(d)
	}
	return im.exec(`INSERT INTO {s}.sequences (id, key_hash, slot, job, dataset, plan_id, plan_hash, plan_ref, created, steps, stages, long, locks, state, reason, park_step, park_told,
			message, declared, version, epoch, owner, held, claim, claimed, updated)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, false, $1, now(), $23)`,
		l.ID, keyHash(l.Key), slot, toText(l.Job), toText(l.Dataset), toText(l.PlanID), hash, ref, l.Created, l.Steps, l.Stages, long, hashes, string(l.State), string(l.Reason),
		l.ParkStep, l.ParkTold, toText(l.Message), declared, int64(l.Version), int64(l.Epoch), owner, l.Updated)
}

func (im *importer) end() error {
	if err := im.flush(); err != nil {
		return err
	}
	if err := im.exec(`UPDATE {s}.store SET stamped = '', adoptions = $1`, im.from.Adoptions); err != nil {
		return err
	}
	return im.drain()
}
