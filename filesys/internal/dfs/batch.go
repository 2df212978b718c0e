package dfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

var _ filesys.BatchStater = (*Files)(nil)

// batchCalls bounds the calls of one StatAll that are in flight.
const batchCalls = 8

// StatAll looks at many paths. Those of one directory are looked up in its
// listing where that takes fewer calls; see [filesys.BatchStater].
func (f *Files) StatAll(ctx context.Context, paths []commitstep.Address) []filesys.Look {
	out := make([]filesys.Look, len(paths))
	dirs := map[string][]int{}
	var order []string
	for i, a := range paths {
		if err := f.check(a); err != nil {
			out[i].Err = err
			continue
		}
		d := path.Dir(a.Path)
		if dirs[d] == nil {
			order = append(order, d)
		}
		dirs[d] = append(dirs[d], i)
	}
	ns, err := f.t.Namespace(ctx)
	if err != nil {
		for i, a := range paths {
			out[i].Err = fmt.Errorf("stat %s: %w", a, err)
		}
		return out
	}
	b := &batch{f: f, ns: ns, paths: paths, out: out}
	b.each(len(order), func(i int) {
		dir, wanted := order[i], dirs[order[i]]
		left := wanted
		// A listing takes as many calls as two or three looks.
		if len(wanted) >= minListed {
			left = b.list(ctx, dir, wanted)
		}
		b.each(len(left), func(n int) { b.stat(ctx, left[n]) })
	})
	return out
}

// minListed is the least number of wanted files in a directory for which it is
// listed.
const minListed = 3

type batch struct {
	f     *Files
	ns    string
	paths []commitstep.Address
	out   []filesys.Look
}

// each calls fn for 0..n-1, several at a time.
func (b *batch) each(n int, fn func(int)) {
	var next atomic.Int64
	work := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			fn(i)
		}
	}
	var wg sync.WaitGroup
	for range min(n, batchCalls) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
}

func (b *batch) stat(ctx context.Context, i int) {
	s, err := b.f.t.Stat(ctx, b.paths[i].Path)
	b.set(i, s, err)
}

func (b *batch) set(i int, s Status, err error) {
	if err != nil {
		b.out[i].Err = fmt.Errorf("stat %s: %w", b.paths[i], err)
		return
	}
	b.out[i].Info, b.out[i].ParentSeen = b.f.info(b.ns, b.paths[i], s), true
}

// list looks the wanted files up in the listing of their directory and returns
// those that it could not decide.
func (b *batch) list(ctx context.Context, dir string, wanted []int) (undecided []int) {
	names := make(map[string][]int, len(wanted))
	least := ""
	for _, i := range wanted {
		n := path.Base(b.paths[i].Path)
		names[n] = append(names[n], i)
		if least == "" || n < least {
			least = n
		}
	}
	p, err := b.f.t.Page(ctx, dir, "")
	if err != nil {
		if filesys.Missing(err) { // and so is everything in it
			for _, i := range wanted {
				b.set(i, Status{}, err)
			}
			return nil
		}
		var remote *RemoteError
		if errors.As(err, &remote) && !remote.NotServing() {
			return wanted // not permitted to list, perhaps; each look says so itself
		}
		// Nobody answers; asking for each file would only take longer.
		for _, i := range wanted {
			b.set(i, Status{}, err)
		}
		return nil
	}
	if len(p.Entries) == 1 && p.Entries[0].Name == "" {
		return wanted // a file is listed as its own only entry
	}
	seen := &span{wanted: names, found: func(all []int, s Status) {
		for _, i := range all {
			b.set(i, s, nil)
		}
	}}
	seen.add(p)
	// A few pages more than needed cost less than looking for a place to
	// start at.
	budget := 4*len(wanted) + len(p.Entries)
	if p.More && (p.Total < 0 || p.Total > budget) {
		seen.start(before(least))
		p.Entries = nil
		p.More = true
	}
	for p.More && len(names) > 0 && seen.entries < budget {
		after := seen.last
		if p, err = b.f.t.Page(ctx, dir, after); err != nil {
			break
		}
		if len(p.Entries) == 0 {
			p.More = false
		}
		seen.add(p)
		if seen.passed() {
			break
		}
	}
	for name, all := range names {
		if !seen.missing(name, err == nil && !p.More) {
			undecided = append(undecided, all...)
			continue
		}
		for _, i := range all {
			b.out[i].Err = fmt.Errorf("stat %s: %w", b.paths[i], fs.ErrNotExist)
			b.out[i].ParentSeen = true
		}
	}
	slices.Sort(undecided)
	return undecided
}

// before is a name that is listed before name, and close to it: a part of it.
func before(name string) string {
	_, n := utf8.DecodeLastRuneInString(name)
	return name[:len(name)-n]
}

// span is an unbroken part of a listing.
type span struct {
	wanted  map[string][]int // what is found is deleted
	found   func([]int, Status)
	entries int
	from    string // the part starts behind it; "" is the start
	last    string
	odd     bool // its names are not all ASCII, or in no order that is known
}

// start begins another part, behind a name.
func (s *span) start(after string) {
	s.from, s.last, s.odd, s.entries = after, after, !ascii(after), 0
}

func (s *span) add(p Page) {
	for _, e := range p.Entries {
		s.entries++
		if !ascii(e.Name) || e.Name <= s.last {
			s.odd = true
		}
		s.last = e.Name
		if i, ok := s.wanted[e.Name]; ok {
			s.found(i, e)
			delete(s.wanted, e.Name)
		}
	}
}

// passed reports that everything wanted would have been listed by now.
func (s *span) passed() bool {
	if s.odd {
		return false
	}
	for n := range s.wanted {
		if n > s.last || !ascii(n) {
			return false
		}
	}
	return true
}

// missing reports whether the part shows that a name is not in the directory.
// The whole listing always does. A part does where the name would stand inside
// it, which only names of ASCII leave no doubt about: name nodes order others
// differently.
func (s *span) missing(name string, toTheEnd bool) bool {
	if s.from == "" && toTheEnd {
		return true
	}
	if s.odd || !ascii(name) || name <= s.from && s.from != "" {
		return false
	}
	return toTheEnd || name < s.last
}

func ascii(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0
}
