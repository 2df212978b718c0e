package commitstep

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
)

// MaxUsedPaths is the most source paths of one sequence that are remembered one
// by one. Of a longer plan the directories are remembered that its sources lie
// in, as if it had used all that is in them.
const MaxUsedPaths = 10_000

// PathDigest stands for a resource and a clean path in it: the first 16 bytes
// of their SHA-256, see docs/formats.md.
type PathDigest [16]byte

// DigestPath is the digest of an address.
func DigestPath(a Address) PathDigest { return sumOf(a.Resource, a.Path) }

// PathDigests is written as one base64 text.
type PathDigests []PathDigest

// MarshalText writes the digests one behind the other.
func (d PathDigests) MarshalText() ([]byte, error) { return d.Append(nil), nil }

// Append is MarshalText behind b.
func (d PathDigests) Append(b []byte) []byte {
	// Three digests are 64 characters without a rest.
	var raw [3 * len(PathDigest{})]byte
	for len(d) > 0 {
		n := 0
		for n < len(raw) && len(d) > 0 {
			n += copy(raw[n:], d[0][:])
			d = d[1:]
		}
		b = base64.RawStdEncoding.AppendEncode(b, raw[:n])
	}
	return b
}

// UnmarshalText reads what MarshalText wrote.
func (d *PathDigests) UnmarshalText(text []byte) error {
	raw, err := base64.RawStdEncoding.AppendDecode(nil, text)
	const size = len(PathDigest{})
	if err != nil || len(raw)%size != 0 {
		return fmt.Errorf("%w: this is no list of path digests", ErrDamaged)
	}
	*d = make(PathDigests, 0, len(raw)/size)
	for ; len(raw) > 0; raw = raw[size:] {
		*d = append(*d, PathDigest(raw))
	}
	return nil
}

// UsedPaths are the paths that a sequence takes things away from. They are kept
// in its header, so that no other live sequence gets one of them.
type UsedPaths struct {
	// Sources are what its steps move away. Each stands for all below it.
	Sources PathDigests `json:"sources,omitempty"`
	// Above are the directories that hold a source, up to the root.
	Above PathDigests `json:"above,omitempty"`
	// Cleanups are its cleanup paths.
	Cleanups PathDigests `json:"cleanups,omitempty"`
}

// Conflict finds a path of u that a live sequence with the paths o stands in
// the way of: the same path, or a source inside a source. A cleanup path may
// hold another sequence's sources, which are then not removed. below says that
// what o uses lies below the path. ok is false when they go together.
func (u *UsedPaths) Conflict(o *UsedPaths) (path PathDigest, below, ok bool) {
	if u == nil || o == nil {
		return PathDigest{}, false, false
	}
	theirs := make(map[PathDigest]pathFlags, len(o.Sources)+len(o.Above)+len(o.Cleanups))
	for flag, list := range map[pathFlags]PathDigests{isSource: o.Sources, aboveSource: o.Above, isCleanup: o.Cleanups} {
		for _, d := range list {
			theirs[d] |= flag
		}
	}
	return u.Blocked(func(d PathDigest) (source, above, cleanup bool) {
		f := theirs[d]
		return f&isSource != 0, f&aboveSource != 0, f&isCleanup != 0
	})
}

// Blocked is Conflict with all other live sequences at once: look tells what
// they use a path for.
func (u *UsedPaths) Blocked(look func(PathDigest) (source, above, cleanup bool)) (path PathDigest, below, ok bool) {
	for _, d := range u.Sources {
		switch source, above, cleanup := look(d); {
		case source || cleanup:
			return d, false, true
		case above:
			return d, true, true
		}
	}
	for _, d := range u.Cleanups {
		if source, _, cleanup := look(d); source || cleanup {
			return d, false, true
		}
	}
	for _, d := range u.Above {
		if source, _, _ := look(d); source {
			return d, false, true
		}
	}
	return PathDigest{}, false, false
}

// StagingRoot is a path that a sequence used with all below it: a cleanup path,
// or a source outside of every one. Together they hold all that it took away,
// and are few where a run stages in a directory of its own.
type StagingRoot struct {
	Address
	Digest PathDigest
	// Above are the directories that hold it, nearest first, without the root of
	// the resource.
	Above PathDigests
}

// Remote reports that what was once sent to the file system may act later,
// whatever became of the process that sent it.
func (r StagingRoot) Remote() bool { return r.Resource != LocalResource }

// staged collects what a plan takes away. It is a part of Planning and under
// its lock.
type staged struct {
	sources   []stagedPath
	cleanups  []stagedPath
	collapsed map[PathDigest]bool // directories that stand for sources in them
	limit     int
}

type stagedPath struct {
	a Address
	l lineage
}

func (s *staged) source(a Address, l lineage) {
	if s.covered(l) {
		return
	}
	s.sources = append(s.sources, stagedPath{a, l})
	if s.limit == 0 {
		s.limit = MaxUsedPaths
	}
	if len(s.sources) > s.limit {
		s.collapse()
	}
}

func (s *staged) covered(l lineage) bool {
	if len(s.collapsed) == 0 {
		return false
	}
	if s.collapsed[l.self] {
		return true
	}
	return slices.ContainsFunc(l.up, func(d PathDigest) bool { return s.collapsed[d] })
}

// collapse replaces the sources of whole directories by the directories, the
// fullest first, until half of the room is free. The root of a resource never
// stands for what is in it.
func (s *staged) collapse() {
	goal := s.limit / 2
	for len(s.sources) > goal {
		type parent struct {
			stagedPath
			n int
		}
		parents := map[PathDigest]*parent{}
		for _, p := range s.sources {
			if len(p.l.up) < 2 {
				continue
			}
			d := parents[p.l.up[0]]
			if d == nil {
				d = &parent{stagedPath: stagedPath{Address{p.a.Resource, p.l.dirs[0]}, lineage{p.l.up[0], p.l.up[1:], p.l.dirs[1:]}}}
				parents[d.l.self] = d
			}
			d.n++
		}
		if len(parents) == 0 {
			return
		}
		list := make([]*parent, 0, len(parents))
		for _, d := range parents {
			list = append(list, d)
		}
		slices.SortFunc(list, func(a, b *parent) int {
			if a.n != b.n {
				return b.n - a.n
			}
			return strings.Compare(a.a.String(), b.a.String())
		})
		if s.collapsed == nil {
			s.collapsed = map[PathDigest]bool{}
		}
		left := len(s.sources)
		var chosen []stagedPath
		for _, d := range list {
			if left <= goal {
				break
			}
			left -= d.n - 1
			s.collapsed[d.l.self] = true
			chosen = append(chosen, d.stagedPath)
		}
		s.sources = slices.DeleteFunc(s.sources, func(p stagedPath) bool { return s.covered(p.l) })
		for _, d := range chosen {
			// A chosen directory may lie in another one.
			if !slices.ContainsFunc(d.l.up, func(u PathDigest) bool { return s.collapsed[u] }) {
				s.sources = append(s.sources, d)
			}
		}
	}
}

// UsedPaths are the source and cleanup paths that were claimed, and the roots
// that hold them. nil when there are none. Call it when all are claimed.
func (p *Planning) UsedPaths() (*UsedPaths, []StagingRoot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.staged
	if len(s.sources)+len(s.cleanups) == 0 {
		return nil, nil
	}
	u := &UsedPaths{Sources: make(PathDigests, 0, len(s.sources))}
	var seen map[PathDigest]bool // of longer plans
	if len(s.sources) > 16 {
		seen = make(map[PathDigest]bool, len(s.sources))
	} else {
		u.Above = make(PathDigests, 0, 16)
	}
	for _, c := range s.cleanups {
		u.Cleanups = append(u.Cleanups, c.l.self)
	}
	roots := make([]StagingRoot, 0, 4)
	root := func(x stagedPath) {
		roots = append(roots, StagingRoot{Address: x.a, Digest: x.l.self, Above: withoutRoot(x.l)})
	}
	for _, x := range s.sources {
		u.Sources = append(u.Sources, x.l.self)
		inside := slices.Contains(u.Cleanups, x.l.self)
		for _, d := range withoutRoot(x.l) {
			if seen != nil && seen[d] || seen == nil && slices.Contains(u.Above, d) {
				break // and all above it
			}
			if seen != nil {
				seen[d] = true
			}
			u.Above = append(u.Above, d)
		}
		for i := 0; i < len(u.Cleanups) && !inside; i++ {
			inside = slices.Contains(x.l.up, u.Cleanups[i])
		}
		if !inside {
			root(x)
		}
	}
	for _, c := range s.cleanups {
		root(c)
	}
	return u, roots
}

func withoutRoot(l lineage) PathDigests {
	n := max(0, len(l.up)-1)
	return l.up[:n:n]
}

// PathOf finds what a digest of UsedPaths stands for: a path, and the source or
// cleanup path that is it or lies in it. ok is false for digests of other plans.
func (p *Planning) PathOf(d PathDigest) (path, of Address, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range slices.Concat(p.staged.sources, p.staged.cleanups) {
		if x.l.self == d {
			return x.a, x.a, true
		}
	}
	for _, x := range slices.Concat(p.staged.sources, p.staged.cleanups) {
		if i := slices.Index(x.l.up, d); i >= 0 {
			return Address{x.a.Resource, x.l.dirs[i]}, x.a, true
		}
	}
	return Address{}, Address{}, false
}
