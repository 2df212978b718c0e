package boltstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/internal/records"
	"github.com/google/uuid"
)

// Import fills an empty store; see [store.Copier]. Until it has ended the store
// is stamped as an unfinished copy, which also cannot be adopted.
func (s *Store) Import(ctx context.Context, items iter.Seq2[store.CopyItem, error]) (done bool, err error) {
	im := &importer{s: s, ctx: ctx}
	for it, err := range items {
		if err != nil {
			return false, err
		}
		if it.Store != nil {
			if done, err := im.begin(it.Store); done || err != nil {
				return done, err
			}
			continue
		}
		if im.from == nil {
			break
		}
		if err := im.item(it); err != nil {
			return false, err
		}
	}
	if im.from == nil {
		return false, errors.New("boltstore: import: the copy does not start with its store")
	}
	return false, im.end()
}

// importer writes the items of a copy in portions.
type importer struct {
	s    *Store
	ctx  context.Context
	from *store.CopyStore
	todo []func(t *txn) error
	size int

	// The sequence whose pages come.
	history *store.HistoryEntry
	live    *commitstep.Live
	id      uuid.UUID
	pages   int
	inline  []byte
	short   *progressPage // of an inline page
}

func (im *importer) begin(from *store.CopyStore) (done bool, err error) {
	im.from = from
	wipe := false
	err = im.s.write(im.ctx, func(t *txn) error {
		info := im.s.currentInfo()
		switch {
		case info.Importing && info.CopiedFrom != from.ID:
			return fmt.Errorf("store %q: %w: it is an %s; copy into a new one", im.s.path, store.ErrNotEmpty, info.Stamped)
		case info.Importing:
			wipe = true
		case info.CopiedFrom == from.ID:
			done = true
			return nil
		case info.Stamped != "":
			return im.s.stampedErr()
		default:
			for tab := tabLive; tab < tableCount; tab++ {
				if b := t.bucket(tab); b == nil {
					continue
				} else if k, _ := b.Cursor().First(); k != nil {
					return fmt.Errorf("store %q: %w; copy into a new one", im.s.path, store.ErrNotEmpty)
				}
			}
		}
		info.Importing, info.CopiedFrom = true, from.ID
		info.Stamped = fmt.Sprintf("unfinished copy of %s; repeat `commitstep store copy`", from.Location)
		t.putInfo(info)
		return nil
	})
	if err != nil || done || !wipe {
		return done, err
	}
	return false, im.wipe()
}

// wipe removes what an unfinished import has left.
func (im *importer) wipe() error {
	for tab := tabLive; tab < tableCount; tab++ {
		for more := true; more; {
			err := im.s.write(im.ctx, func(t *txn) error {
				var keys [][]byte
				if more = t.bucket(tab) != nil; !more {
					return nil
				}
				c := t.bucket(tab).Cursor()
				for k, _ := c.First(); k != nil && len(keys) < 1000; k, _ = c.Next() {
					keys = append(keys, bytes.Clone(k))
				}
				for _, k := range keys {
					t.del(tab, k)
				}
				more = len(keys) > 0
				t.then(func() { clear(im.s.seqs); im.s.paths.forget() })
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// add queues a record to be written.
func (im *importer) add(tab table, t commitstep.RecordType, key []byte, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("boltstore: import: %w", err)
	}
	im.addRaw(tab, key, commitstep.Seal(t, key, b))
	return im.drain(false)
}

func (im *importer) addRaw(tab table, key, record []byte) {
	im.todo = append(im.todo, func(t *txn) error { t.put(tab, key, record); return nil })
	im.size += len(key) + len(record)
}

// drain writes what is queued once it is worth a commit.
func (im *importer) drain(all bool) error {
	if len(im.todo) == 0 || !all && im.size < pageBatch {
		return nil
	}
	todo := im.todo
	im.todo, im.size = nil, 0
	return im.s.write(im.ctx, func(t *txn) error {
		for _, f := range todo {
			if err := f(t); err != nil {
				return err
			}
		}
		return nil
	})
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
		im.live, im.id = it.Sequence, it.Sequence.ID
	case it.History != nil:
		im.history, im.id = it.History, it.History.ID
	case it.Attempts != nil:
		return im.attempts(it.Attempts)
	case it.Watermark != nil:
		v := *it.Watermark
		v.Unaccepted = false
		return im.add(tabWatermarks, commitstep.RecordWatermark, pairKey(v.Job, v.Source), v)
	case it.Accepted != nil:
		return im.add(tabAccepted, commitstep.RecordMeta, []byte(it.Accepted.Job), acceptRecord{Adoption: it.Accepted.Adoption, At: it.Accepted.At})
	case it.Plan != nil:
		return im.add(tabPlanIDs, commitstep.RecordPlanID, tripleKey(it.Plan.Key, it.Plan.PlanID), it.Plan)
	case it.Path != nil:
		return im.path(it.Path)
	case it.Audit != nil:
		return im.add(tabAudit, commitstep.RecordAudit, numberKey(it.Audit.Number), it.Audit)
	}
	return nil
}

// progressPageOf is what is known of the steps of a page.
func progressPageOf(list []commitstep.Progress) *progressPage {
	p := new(progressPage)
	for i, x := range list {
		if x.Done {
			p.setDone(i)
		}
		if x.Note == nil && x.NoReturn == nil && x.Count == 0 && len(x.Attempts) == 0 {
			continue
		}
		n := p.note(i)
		*n = x
		n.Done = false
	}
	return p
}

func (p *progressPage) empty() bool { return len(p.Done) == 0 && len(p.Steps) == 0 }

func (im *importer) page(p *store.CopyPage) error {
	if im.id != p.Sequence || p.Number != im.pages {
		return fmt.Errorf("boltstore: import: page %d of sequence %s is out of place", p.Number, p.Sequence)
	}
	im.pages++
	b, err := records.AppendSteps(nil, p.Steps)
	if err != nil {
		return err
	}
	progress := progressPageOf(p.Progress)
	if p.Number == 0 && im.live != nil && im.live.Steps <= store.PageSize && len(b) <= inlineLimit {
		im.inline, im.short = b, progress
		return nil
	}
	key := pageKey(p.Sequence, p.Number)
	im.addRaw(tabPages, key, commitstep.Seal(commitstep.RecordPage, key, b))
	if !progress.empty() {
		return im.add(tabProgress, commitstep.RecordProgress, key, progress)
	}
	return im.drain(false)
}

// flush writes the sequence whose pages have come.
func (im *importer) flush() error {
	l, e, inline, short, pages := im.live, im.history, im.inline, im.short, im.pages
	im.live, im.history, im.inline, im.short, im.pages, im.id = nil, nil, nil, nil, 0, uuid.Nil
	switch {
	case e != nil:
		return im.outcome(e)
	case l != nil:
		if want := (l.Steps + store.PageSize - 1) / store.PageSize; pages != want {
			return fmt.Errorf("boltstore: import: sequence %s of dataset %s came with %d pages of %d", l.ID, l.Key, pages, want)
		}
		return im.sequence(l, inline, short)
	}
	return nil
}

func (im *importer) outcome(e *store.HistoryEntry) error {
	header, err := json.Marshal(commitstep.Header{ID: e.ID, Key: e.Key, PlanID: e.PlanID, PlanHash: e.PlanHash, Created: e.Created, Steps: e.Steps, Stages: e.Stages,
		PageSize: store.PageSize, FirstWatermark: -1, Locks: e.Locks, Moves: e.Moves, Cleanup: e.Cleanup, AcceptReusedPaths: e.AcceptReusedPaths})
	if err != nil {
		return fmt.Errorf("boltstore: import: %w", err)
	}
	var detail []byte
	if e.Detail != nil {
		if detail, err = records.AppendSteps(nil, e.Detail); err != nil {
			return err
		}
	}
	rec, err := encodeHistory(header, detail, records.HistoryTail{State: e.State, Ended: e.Ended, Epoch: e.Epoch, Notes: e.Notes, Message: e.Message, CleanupReport: e.CleanupReport})
	if err != nil {
		return err
	}
	im.addRaw(tabHistory, bytes.Clone(e.ID[:]), commitstep.SealBuffer(commitstep.RecordHistory, e.ID[:], rec))
	return im.drain(false)
}

func (im *importer) sequence(l *commitstep.Live, inline []byte, short *progressPage) error {
	h := l.Header
	raw, err := json.Marshal(&h)
	if err != nil {
		return fmt.Errorf("boltstore: import: %w", err)
	}
	tab, key := tabLive, liveKey(l.Key)
	if l.Cleaning {
		tab, key = tabCleaning, cleaningKey(l.Key, l.ID)
	}
	im.addRaw(tab, key, commitstep.SealBuffer(commitstep.RecordHeader, key, encodeHeader(raw, inline)))
	cond := conditionRecord{Condition: l.Condition}
	if short != nil && !short.empty() {
		cond.Progress = short
	}
	id := bytes.Clone(l.ID[:])
	if err := im.add(tabConditions, commitstep.RecordCondition, id, cond); err != nil {
		return err
	}
	if !l.Cleaning {
		for _, lock := range locksOf(&h) {
			if err := im.add(tabLocks, commitstep.RecordLock, []byte(lock), lockRecord{ID: l.ID, Key: l.Key}); err != nil {
				return err
			}
		}
	}
	q := &seq{id: l.ID, key: l.Key, cleaning: l.Cleaning, long: inline == nil, epoch: l.Epoch}
	im.todo = append(im.todo, func(t *txn) error {
		t.then(func() { im.s.seqs[q.id] = q; im.s.paths.forget() })
		return nil
	})
	return im.drain(false)
}

func (im *importer) end() error {
	if err := im.flush(); err != nil {
		return err
	}
	if err := im.drain(true); err != nil {
		return err
	}
	return im.s.write(im.ctx, func(t *txn) error {
		info := im.s.currentInfo()
		info.Importing, info.Stamped, info.Adoptions = false, "", im.from.Adoptions
		t.putInfo(info)
		return nil
	})
}
