package boltstore

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"slices"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

var _ store.PathKeeper = (*Store)(nil)

// Two things are known of paths. What live sequences use is in their headers,
// and in memory while the store is open; local files need no more, since a
// frozen process keeps the store's lock. What was used of a remote file system
// is in tabPaths, for ever.

// pathRecord is what is remembered of a path: the newest sequence that used it
// with all below it, and one that used something below it.
type pathRecord struct {
	Sequence uuid.UUID `json:"sequence,omitzero"`
	Below    uuid.UUID `json:"below,omitzero"`
}

// livePaths are the paths of the live sequences. Only the committer touches it.
// A failed commit, and whatever changes live sequences past put and end, drops
// it; the next put that needs it reads the headers.
type livePaths struct {
	known    bool
	sources  map[commitstep.PathDigest]uuid.UUID
	cleanups map[commitstep.PathDigest]uuid.UUID
	above    map[commitstep.PathDigest]sourcesBelow
}

// sourcesBelow counts the live sequences with a source below a directory; id is
// one of them, or one that was.
type sourcesBelow struct {
	n  int
	id uuid.UUID
}

func (p *livePaths) forget() { *p = livePaths{} }

// add takes in the paths of sequence id.
func (p *livePaths) add(id uuid.UUID, u *commitstep.UsedPaths) {
	if !p.known || u == nil {
		return
	}
	for _, d := range u.Sources {
		p.sources[d] = id
	}
	for _, d := range u.Cleanups {
		p.cleanups[d] = id
	}
	for _, d := range u.Above {
		p.above[d] = sourcesBelow{p.above[d].n + 1, id}
	}
}

// remove takes out what add took in.
func (p *livePaths) remove(id uuid.UUID, u *commitstep.UsedPaths) {
	if !p.known || u == nil {
		return
	}
	for _, d := range u.Sources {
		if p.sources[d] == id {
			delete(p.sources, d)
		}
	}
	for _, d := range u.Cleanups {
		if p.cleanups[d] == id {
			delete(p.cleanups, d)
		}
	}
	for _, d := range u.Above {
		if b := p.above[d]; b.n > 1 {
			p.above[d] = sourcesBelow{b.n - 1, b.id}
		} else {
			delete(p.above, d)
		}
	}
}

// liveConflict finds a live sequence that stands in the way of u.
func (t *txn) liveConflict(u *commitstep.UsedPaths) (*store.UsedPathError, error) {
	if u == nil {
		return nil, nil
	}
	p := &t.s.paths
	if !p.known {
		if err := t.readLivePaths(); err != nil {
			return nil, err
		}
	}
	if len(p.sources)+len(p.cleanups) == 0 {
		return nil, nil
	}
	d, below, found := u.Blocked(func(d commitstep.PathDigest) (source, above, cleanup bool) {
		_, source = p.sources[d]
		_, cleanup = p.cleanups[d]
		return source, p.above[d].n > 0, cleanup
	})
	if !found {
		return nil, nil
	}
	e := &store.UsedPathError{Path: d, Below: below, Live: true}
	if below {
		return e, t.nameBelow(e)
	}
	var ok bool
	if e.Sequence, ok = p.sources[d]; !ok {
		e.Sequence = p.cleanups[d]
	}
	return e, nil
}

// nameBelow finds a live sequence with a source below e.Path: the one that was
// noted may have ended before the others.
func (t *txn) nameBelow(e *store.UsedPathError) error {
	e.Sequence = t.s.paths.above[e.Path].id
	for id, u := range t.liveHeaders() {
		for _, d := range u.Above {
			if d == e.Path {
				e.Sequence = id
				return t.err
			}
		}
	}
	return t.err
}

func (t *txn) readLivePaths() error {
	p := &t.s.paths
	*p = livePaths{known: true, sources: map[commitstep.PathDigest]uuid.UUID{}, cleanups: map[commitstep.PathDigest]uuid.UUID{}, above: map[commitstep.PathDigest]sourcesBelow{}}
	for id, u := range t.liveHeaders() {
		p.add(id, u)
	}
	return nil
}

// liveHeaders yields what live sequences use. One that cannot be read is left
// out: it is set aside, and nobody runs it.
func (t *txn) liveHeaders() iter.Seq2[uuid.UUID, *commitstep.UsedPaths] {
	return func(yield func(uuid.UUID, *commitstep.UsedPaths) bool) {
		for id, q := range t.s.snapshotSeqs() {
			if q.cleaning || q.gone {
				continue
			}
			h := q.header
			if h == nil {
				tab, key := q.where()
				raw, _, err := openHeader(key, t.get(tab, key))
				if err != nil || !bytes.Contains(raw, []byte(`"used":`)) {
					continue
				}
				h = new(commitstep.Header)
				if json.Unmarshal(raw, h) != nil {
					continue
				}
			}
			if h.Used != nil && !yield(id, h.Used) {
				return
			}
		}
	}
}

// remembered finds an earlier sequence that used a remote root, a directory
// above it, or something below it.
func (t *txn) remembered(roots []commitstep.StagingRoot) (*store.UsedPathError, error) {
	for _, r := range roots {
		if !r.Remote() {
			continue
		}
		rec, err := t.path(r.Digest)
		switch {
		case err != nil:
			return nil, err
		case rec.Sequence != uuid.Nil:
			return t.usedBy(r.Digest, rec.Sequence, false), nil
		case rec.Below != uuid.Nil:
			return t.usedBy(r.Digest, rec.Below, true), nil
		}
		for _, d := range r.Above {
			if rec, err = t.path(d); err != nil {
				return nil, err
			}
			if rec.Sequence != uuid.Nil {
				return t.usedBy(d, rec.Sequence, false), nil
			}
		}
	}
	return nil, nil
}

func (t *txn) usedBy(d commitstep.PathDigest, id uuid.UUID, below bool) *store.UsedPathError {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	q := t.s.seqs[id]
	return &store.UsedPathError{Path: d, Below: below, Sequence: id, Live: q != nil && !q.cleaning && !q.gone}
}

// path is what is remembered of a path.
func (t *txn) path(d commitstep.PathDigest) (pathRecord, error) {
	var r pathRecord
	rec := t.get(tabPaths, d[:])
	if rec == nil {
		return r, t.s.absent(tabPaths, d[:])
	}
	return r, openRecord(commitstep.RecordPath, d[:], rec, &r)
}

// remember notes that sequence id uses the remote ones of roots. What is noted
// of a directory above is never changed, so that runs beside each other do not
// write one record again and again.
func (t *txn) remember(id uuid.UUID, roots []commitstep.StagingRoot) error {
	// All are read before the first is written: a record that is damaged stores
	// nothing.
	var all map[commitstep.PathDigest]pathRecord
	for _, r := range roots {
		if !r.Remote() {
			continue
		}
		if all == nil {
			all = map[commitstep.PathDigest]pathRecord{}
		}
		for i, d := range append([]commitstep.PathDigest{r.Digest}, r.Above...) {
			rec, seen := all[d]
			if !seen {
				var err error
				if rec, err = t.path(d); err != nil {
					return err
				}
			}
			switch {
			case i == 0:
				rec.Sequence = id
			case rec.Below != uuid.Nil:
				continue
			default:
				rec.Below = id
			}
			all[d] = rec
		}
	}
	for d, rec := range all {
		t.putPath(d, rec)
	}
	return t.err
}

func (t *txn) putPath(d commitstep.PathDigest, r pathRecord) {
	sealed, err := sealRecord(commitstep.RecordPath, d[:], r)
	if err != nil {
		t.err = err
		return
	}
	t.makePaths()
	t.put(tabPaths, d[:], sealed)
}

// makePaths makes the table with its first record. Programs of format 1 do not
// know it and must not write the file any more.
func (t *txn) makePaths() {
	if t.err != nil || t.bucket(tabPaths) != nil {
		return
	}
	if _, err := t.tx.CreateBucket([]byte(tableNames[tabPaths])); err != nil {
		t.err = err
		return
	}
	info := t.s.currentInfo()
	info.Format = max(info.Format, pathsFormat)
	t.putInfo(info)
}

// FindUsed tells what Put would refuse; see [store.PathKeeper].
func (s *Store) FindUsed(ctx context.Context, used *commitstep.UsedPaths, roots []commitstep.StagingRoot, accept bool) (*store.UsedPathError, error) {
	var found *store.UsedPathError
	err := s.write(ctx, func(t *txn) (err error) {
		found, err = t.findUsed(used, roots, accept)
		return err
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

func (t *txn) findUsed(used *commitstep.UsedPaths, roots []commitstep.StagingRoot, accept bool) (*store.UsedPathError, error) {
	found, err := t.liveConflict(used)
	if found != nil || err != nil || accept {
		return found, err
	}
	return t.remembered(roots)
}

// exportPaths gives all that is remembered, and what live sequences use: a store
// that is shared has to remember local paths too.
func (s *Store) exportPaths(ctx context.Context, give func(store.CopyItem) bool) (bool, error) {
	live := map[commitstep.PathDigest]store.CopyPath{}
	for l, err := range s.Scan(ctx, store.Filter{States: []commitstep.State{commitstep.Pending, commitstep.Parked}}) {
		if err != nil {
			return false, err
		}
		if l.Used == nil {
			continue
		}
		for _, d := range slices.Concat(l.Used.Sources, l.Used.Cleanups) {
			live[d] = store.CopyPath{Path: d, Sequence: l.ID, Below: live[d].Below}
		}
		for _, d := range l.Used.Above {
			live[d] = store.CopyPath{Path: d, Sequence: live[d].Sequence, Below: l.ID}
		}
	}
	if s.currentInfo().Format >= pathsFormat {
		if more, err := s.exportTable(ctx, live, give); err != nil || !more {
			return more, err
		}
	}
	for _, p := range live {
		if !give(store.CopyItem{Path: &p}) {
			return false, nil
		}
	}
	return true, nil
}

// exportTable gives the table, and leaves in live what is not in it.
func (s *Store) exportTable(ctx context.Context, live map[commitstep.PathDigest]store.CopyPath, give func(store.CopyItem) bool) (bool, error) {
	for c := range s.chunks(ctx, tabPaths, nil, false) {
		if c.err != nil {
			return false, c.err
		}
		for _, r := range c.records {
			var rec pathRecord
			err := openRecord(commitstep.RecordPath, r.key, r.value, &rec)
			if err == nil && len(r.key) != len(commitstep.PathDigest{}) {
				err = damaged("the key is no path digest")
			}
			if err != nil {
				return false, err
			}
			p := store.CopyPath{Path: commitstep.PathDigest(r.key), Sequence: rec.Sequence, Below: rec.Below}
			if l, ok := live[p.Path]; ok {
				if p.Sequence == uuid.Nil {
					p.Sequence = l.Sequence
				}
				if p.Below == uuid.Nil {
					p.Below = l.Below
				}
				delete(live, p.Path)
			}
			if !give(store.CopyItem{Path: &p}) {
				return false, nil
			}
		}
	}
	return true, nil
}

func (im *importer) path(p *store.CopyPath) error {
	im.todo = append(im.todo, func(t *txn) error {
		t.putPath(p.Path, pathRecord{Sequence: p.Sequence, Below: p.Below})
		return nil
	})
	im.size += 100
	return im.drain(false)
}
