package boltstore

import (
	"context"
	"iter"
	"slices"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"go.etcd.io/bbolt"
)

// Scan yields live and cleaning sequences in key order. It reads in portions,
// each in a transaction of its own, and holds none while the caller looks at a
// sequence; what changes meanwhile may be seen as it was before or after.
func (s *Store) Scan(ctx context.Context, f store.Filter) iter.Seq2[commitstep.Live, error] {
	return func(yield func(commitstep.Live, error) bool) {
		sc := &scanner{s: s, job: f.Job, match: f.Match, keep: func(l *commitstep.Live) bool {
			return len(f.States) == 0 || slices.Contains(f.States, l.State)
		}}
		for more := true; more; {
			var found []commitstep.Live
			var err error
			if found, more, err = sc.next(ctx, 64); err != nil {
				yield(commitstep.Live{}, err)
				return
			}
			for _, l := range found {
				if !yield(l, nil) {
					return
				}
			}
		}
	}
}

// scanner walks live and cleaning sequences together, in key order.
type scanner struct {
	s     *Store
	job   string
	match func(string) bool
	keep  func(*commitstep.Live) bool
	after *commitstep.Key
}

// scanStep is how many sequences one transaction of a scan looks at, at most.
const scanStep = 512

// next returns the following sequences, about limit of them, never splitting
// those of one key, and whether there may be more.
func (c *scanner) next(ctx context.Context, limit int) (found []commitstep.Live, more bool, err error) {
	err = c.s.view(ctx, func(tx *bbolt.Tx) error {
		r := rtx{tx}
		a := c.stream(r, tabLive)
		b := c.stream(r, tabCleaning)
		for seen := 0; a.key != nil || b.key != nil; seen++ {
			st := a
			if a.key == nil || b.key != nil && b.dataset.Compare(a.dataset) < 0 {
				st = b
			}
			if c.after != nil && *c.after != st.dataset && (len(found) >= limit || seen >= scanStep) {
				more = true
				return nil
			}
			at := st.dataset
			c.after = &at
			if l := c.look(r, st); l != nil {
				found = append(found, *l)
			}
			st.next()
		}
		return nil
	})
	return found, more, err
}

// look decodes the sequence at which st stands; nil if it is not wanted, or
// set aside.
func (c *scanner) look(r rtx, st *stream) *commitstep.Live {
	if c.match != nil && !c.match(st.dataset.Dataset) {
		return nil
	}
	l, _, err := decodeLive(r, c.s, st.tab, st.key, st.value)
	if err != nil {
		return nil // Quarantine lists it
	}
	c.s.mu.Lock()
	bad := c.s.unreadable(l.ID)
	c.s.mu.Unlock()
	if bad != nil {
		return nil
	}
	c.s.overlay(l)
	if c.keep != nil && !c.keep(l) {
		return nil
	}
	return l
}

// stream is a cursor over one of the two tables.
type stream struct {
	tab        table
	c          *bbolt.Cursor
	job        string
	key, value []byte
	dataset    commitstep.Key
}

func (c *scanner) stream(r rtx, tab table) *stream {
	st := &stream{tab: tab, c: r.cursor(tab), job: c.job}
	switch {
	case c.after != nil:
		// The prefix of a key's cleaning sequences sorts before all of them, and
		// after their key comes the end of the text, which no longer key has.
		from := liveKey(*c.after)
		if tab == tabCleaning {
			from = tripleKey(*c.after, "")
		}
		st.set(st.c.Seek(from))
		for st.key != nil && st.dataset.Compare(*c.after) <= 0 {
			st.next()
		}
	case c.job != "":
		st.set(st.c.Seek(appendPart(nil, c.job)))
	default:
		st.set(st.c.First())
	}
	return st
}

func (st *stream) next() { st.set(st.c.Next()) }

// set takes over the cursor's position, passing over keys that cannot be read.
func (st *stream) set(k, v []byte) {
	for ; k != nil; k, v = st.c.Next() {
		var err error
		if st.tab == tabCleaning {
			st.dataset, _, err = parseTriple(k)
		} else {
			st.dataset, err = parseLiveKey(k)
		}
		if err == nil {
			break
		}
	}
	st.key, st.value = k, v
	if st.job != "" && st.key != nil && st.dataset.Job != st.job {
		st.key, st.value = nil, nil
	}
}
