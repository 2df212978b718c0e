package commitstep

import (
	"crypto/sha256"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"
)

// MaxLocks is the most locks one sequence may hold, those of its watermarks
// and directory destinations included. They are kept in one record.
const MaxLocks = 10_000

// sumOf takes both transports of an HDFS for one file system.
func sumOf(resource, p string) PathDigest {
	if r, ok := strings.CutPrefix(resource, "web"); ok && strings.HasPrefix(r, "hdfs://") {
		resource = r
	}
	h := sha256.Sum256([]byte(resource + "\x00" + p))
	return PathDigest(h[:16])
}

// Planning is the part of a plan's preparation that its steps share: claimed
// paths, locks and watermark moves. Paths are remembered as 128-bit digests,
// so that a plan of a million files stays small. Safe for concurrent use.
type Planning struct {
	id    uuid.UUID
	key   Key
	once  OnceSet
	lines lineages

	mu    sync.Mutex
	paths map[PathDigest]pathFlags
	locks map[string]bool // value: exclusive
	moves []WatermarkMove

	staged staged
}

// pathFlags say what a plan does with a path.
type pathFlags uint8

const (
	isSource     pathFlags = 1 << iota // a step moves it away
	isSourceTree                       // … with all below it
	isDest                             // a step publishes it
	isDestTree                         // … with all below it
	isCleanup                          // it is cleaned up at the end
	aboveSource                        // a source lies below it
	aboveDest                          // a destination lies below it
	aboveCleanup                       // a cleanup path lies below it
)

// NewPlanning starts the preparation of a plan as sequence id. Locks are those
// that the plan itself names.
func NewPlanning(id uuid.UUID, key Key, locks []string) (*Planning, error) {
	p := &Planning{id: id, key: key}
	for _, l := range locks {
		if err := CheckName("lock", l); err != nil {
			return nil, err
		}
		if err := p.addLock("locks", l, false); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// For gives the preparation of one step.
func (p *Planning) For(s Step) *Preparation {
	return &Preparation{Sequence: p.id, Key: p.key, Step: s, plan: p}
}

// Locks are all locks of the plan, sorted.
func (p *Planning) Locks() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for l := range p.locks {
		out = append(out, l)
	}
	slices.Sort(out)
	return out
}

// Moves are the commit-store watermarks that the plan moves, by source.
func (p *Planning) Moves() []WatermarkMove {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := slices.Clone(p.moves)
	slices.SortFunc(out, func(a, b WatermarkMove) int {
		return Key{a.Job, a.Source}.Compare(Key{b.Job, b.Source})
	})
	return out
}

// lineage is a path and its proper ancestors, nearest first, as digests.
type lineage struct {
	self PathDigest
	up   []PathDigest
	dirs []string
}

func lineageOf(a Address) lineage {
	l := lineage{self: sumOf(a.Resource, a.Path)}
	for d := a.Path; d != "/" && d != "."; {
		d = path.Dir(d)
		l.dirs = append(l.dirs, d)
		l.up = append(l.up, sumOf(a.Resource, d))
	}
	return l
}

// lineages remembers the ancestors of the last few directories, since the files
// of a plan lie together. What it gives out is shared, and never changed. Safe
// for concurrent use.
type lineages struct {
	mu   sync.Mutex
	last [4]struct {
		dir Address
		l   lineage // of something in dir
	}
	next int
}

func (c *lineages) of(a Address) lineage {
	dir := a.Dir()
	if dir.Path == a.Path || dir.Path == "." {
		return lineageOf(a)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.last {
		if c.last[i].dir == dir {
			l := c.last[i].l
			l.self = sumOf(a.Resource, a.Path)
			return l
		}
	}
	l := lineageOf(a)
	c.last[c.next].dir, c.last[c.next].l = dir, l
	c.next = (c.next + 1) % len(c.last)
	return l
}

// within returns the nearest proper ancestor that has one of the flags.
func (p *Planning) within(l lineage, f pathFlags) (dir string, ok bool) {
	for i, s := range l.up {
		if p.paths[s]&f != 0 {
			return l.dirs[i], true
		}
	}
	return "", false
}

// set marks the path, and its ancestors as lying above it.
func (p *Planning) set(l lineage, self, above pathFlags) {
	if p.paths == nil {
		p.paths = map[PathDigest]pathFlags{}
	}
	p.paths[l.self] |= self
	for _, s := range l.up {
		if p.paths[s]&above != 0 {
			return // its ancestors are marked too
		}
		p.paths[s] |= above
	}
}

func (p *Planning) claim(where string, a Address, use PathUse) error {
	l := p.lines.of(a)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch use {
	case CleanupTree:
		return p.claimCleanup(where, a, l)
	case SourceFile, SourceTree:
		return p.claimSource(where, a, l, use == SourceTree)
	}
	return p.claimDestination(where, a, l, use == DestinationTree)
}

// Steps are prepared concurrently, so every rule below holds whichever of two
// claims came first.

func (p *Planning) claimSource(where string, a Address, l lineage, tree bool) error {
	bad := func(hint, format string, args ...any) error {
		return &PlanError{Where: where, Problem: fmt.Sprintf(format, args...), Hint: hint}
	}
	const (
		both    = "move the directory or its files, not both"
		ring    = "a plan cannot shift files in a ring or in a chain"
		outside = "publish to a place outside every source"
	)
	switch self := p.paths[l.self]; {
	case self&isSource != 0:
		return bad("name every source once", "moves %s, which another step of the plan moves too", a)
	case self&aboveSource != 0:
		return bad(both, "moves %s, and another step moves something inside it", a)
	case self&isDest != 0:
		return bad(ring, "moves %s, which is a destination of the plan", a)
	case self&aboveDest != 0:
		return bad(outside, "moves %s, and a destination of the plan lies inside it", a)
	}
	if in, ok := p.within(l, isSource); ok {
		return bad(both, "moves %s, which lies inside %s that another step moves", a, in)
	}
	if in, ok := p.within(l, isDest); ok {
		return bad(ring, "moves %s out of %s, which is a destination of the plan", a, in)
	}
	flags := isSource
	if tree {
		flags |= isSourceTree
	}
	p.set(l, flags, aboveSource)
	p.staged.source(a, l)
	return nil
}

func (p *Planning) claimDestination(where string, a Address, l lineage, tree bool) error {
	bad := func(hint, format string, args ...any) error {
		return &PlanError{Where: where, Problem: fmt.Sprintf(format, args...), Hint: hint}
	}
	const (
		ring    = "a plan cannot shift files in a ring or in a chain"
		outside = "publish to a place outside every source"
		another = "a published file or directory holds what its source held; name another place"
	)
	switch self := p.paths[l.self]; {
	case self&isDest != 0:
		return bad("name every destination once", "has the destination %s, which another step of the plan has too", a)
	case self&isSource != 0:
		return bad(ring, "has the destination %s, which is a source of the plan", a)
	case self&aboveSource != 0:
		return bad(ring, "has the destination %s, and a source of the plan lies inside it", a)
	case self&aboveDest != 0:
		return bad(another, "publishes %s, and another step publishes something inside it", a)
	}
	if in, ok := p.within(l, isSource); ok {
		return bad(outside, "has the destination %s inside %s, which a step of the plan moves away", a, in)
	}
	if in, ok := p.within(l, isDest); ok {
		return bad(another, "has the destination %s inside %s, which another step publishes", a, in)
	}
	flags := isDest
	if tree {
		flags |= isDestTree
	}
	p.set(l, flags, aboveDest)
	return nil
}

// claimCleanup runs after all claims of steps.
func (p *Planning) claimCleanup(where string, a Address, l lineage) error {
	bad := func(hint, format string, args ...any) error {
		return &PlanError{Where: where, Problem: fmt.Sprintf(format, args...), Hint: hint}
	}
	const elsewhere = "clean up a staging directory that nothing is published to"
	switch self := p.paths[l.self]; {
	case self&isDest != 0:
		return bad(elsewhere, "cleans up %s, which is a destination of the plan", a)
	case self&aboveDest != 0:
		return bad(elsewhere, "cleans up %s, and a destination of the plan lies inside it", a)
	case self&isCleanup != 0:
		return bad("name every cleanup path once", "cleans up %s twice", a)
	case self&aboveCleanup != 0:
		return bad("name the outer one only", "cleans up %s, and another cleanup path lies inside it", a)
	}
	if in, ok := p.within(l, isDest); ok {
		return bad(elsewhere, "cleans up %s inside the destination %s of the plan", a, in)
	}
	if in, ok := p.within(l, isCleanup); ok {
		return bad("name the outer one only", "cleans up %s inside %s, another cleanup path", a, in)
	}
	p.set(l, isCleanup, aboveCleanup)
	p.staged.cleanups = append(p.staged.cleanups, stagedPath{a, l})
	return nil
}

func (p *Planning) isSource(a Address) bool { return p.covered(a, isSource, isSourceTree) }

func (p *Planning) isDestination(a Address) bool { return p.covered(a, isDest, isDestTree) }

// covered reports whether a has the flag itself, or lies in a tree.
func (p *Planning) covered(a Address, self, tree pathFlags) bool {
	l := p.lines.of(a)
	p.mu.Lock()
	defer p.mu.Unlock()
	_, in := p.within(l, tree)
	return in || p.paths[l.self]&self != 0
}

func (p *Planning) addLock(where, lock string, exclusive bool) error {
	if err := CheckName("lock", lock); err != nil {
		return &PlanError{Where: where, Problem: "needs a lock that cannot be stored", Err: err}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	ex, dup := p.locks[lock]
	switch {
	case dup && (ex || exclusive):
		return &PlanError{Where: where, Problem: fmt.Sprintf("needs %q, which another step of the plan needs too", lock), Hint: "one step per watermark, partition or directory"}
	case !dup && len(p.locks) >= MaxLocks:
		return &PlanError{Where: where, Problem: fmt.Sprintf("is one lock too many: a sequence may hold %d", MaxLocks), Hint: "split the plan"}
	}
	if p.locks == nil {
		p.locks = map[string]bool{}
	}
	p.locks[lock] = exclusive
	return nil
}

func (p *Planning) addMove(m WatermarkMove) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moves = append(p.moves, m)
}
