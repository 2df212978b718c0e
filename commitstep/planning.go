package commitstep

import (
	"crypto/sha256"
	"fmt"
	"path"
	"slices"
	"sync"

	"github.com/google/uuid"
)

// MaxLocks is the most locks one sequence may hold, those of its watermarks
// and directory destinations included. They are kept in one record.
const MaxLocks = 10_000

type pathSum [16]byte

func sumOf(resource, p string) pathSum {
	h := sha256.Sum256([]byte(resource + "\x00" + p))
	return pathSum(h[:16])
}

// Planning is the part of a plan's preparation that its steps share: claimed
// paths, locks and watermark moves. Paths are remembered as 128-bit digests,
// so that a plan of a million files stays small. Safe for concurrent use.
type Planning struct {
	id   uuid.UUID
	key  Key
	once OnceSet

	mu        sync.Mutex
	sources   map[pathSum]struct{}
	dests     map[pathSum]struct{}
	trees     map[pathSum]struct{} // source trees
	destDirs  map[pathSum]struct{} // ancestors of destinations
	srcDirs   map[pathSum]struct{} // ancestors of sources
	destTrees map[pathSum]struct{}
	cleanups  map[pathSum]struct{}
	cleanDirs map[pathSum]struct{} // ancestors of cleanup paths
	locks     map[string]bool      // value: exclusive
	moves     []WatermarkMove
}

// NewPlanning starts the preparation of a plan as sequence id. Locks are those
// that the plan itself names.
func NewPlanning(id uuid.UUID, key Key, locks []string) (*Planning, error) {
	p := &Planning{id: id, key: key,
		sources: map[pathSum]struct{}{}, dests: map[pathSum]struct{}{}, trees: map[pathSum]struct{}{},
		destDirs: map[pathSum]struct{}{}, srcDirs: map[pathSum]struct{}{}, destTrees: map[pathSum]struct{}{},
		cleanups: map[pathSum]struct{}{}, cleanDirs: map[pathSum]struct{}{},
		locks: map[string]bool{}}
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

func has(m map[pathSum]struct{}, k pathSum) bool { _, ok := m[k]; return ok }

// above calls fn with the digest of every proper ancestor of a, nearest first,
// until fn returns true, and reports whether it did.
func above(a Address, fn func(pathSum, string) bool) bool {
	for d := a.Path; d != "/" && d != "."; {
		d = path.Dir(d)
		if fn(sumOf(a.Resource, d), d) {
			return true
		}
	}
	return false
}

func (p *Planning) claim(where string, a Address, use PathUse) error {
	bad := func(problem, hint string) error { return &PlanError{Where: where, Problem: problem, Hint: hint} }
	sum := sumOf(a.Resource, a.Path)
	p.mu.Lock()
	defer p.mu.Unlock()
	if use == CleanupTree {
		return p.claimCleanup(where, a, sum)
	}
	source := use == SourceFile || use == SourceTree
	var in string
	switch {
	// Steps are prepared concurrently, so every rule holds whichever of the two
	// claims came first.
	case source && has(p.sources, sum):
		return bad(fmt.Sprintf("moves %s, which another step of the plan moves too", a), "name every source once")
	case source && above(a, func(s pathSum, d string) bool { in = d; return has(p.sources, s) }):
		return bad(fmt.Sprintf("moves %s, which lies inside %s that another step moves", a, in), "move the directory or its files, not both")
	case source && has(p.srcDirs, sum):
		return bad(fmt.Sprintf("moves %s, and another step moves something inside it", a), "move the directory or its files, not both")
	case source && has(p.dests, sum):
		return bad(fmt.Sprintf("moves %s, which is a destination of the plan", a), "a plan cannot shift files in a ring or in a chain")
	case source && has(p.destDirs, sum):
		return bad(fmt.Sprintf("moves %s, and a destination of the plan lies inside it", a), "publish to a place outside every source")
	case source && above(a, func(s pathSum, d string) bool { in = d; return has(p.dests, s) }):
		return bad(fmt.Sprintf("moves %s out of %s, which is a destination of the plan", a, in), "a plan cannot shift files in a ring or in a chain")
	case !source && has(p.dests, sum):
		return bad(fmt.Sprintf("has the destination %s, which another step of the plan has too", a), "name every destination once")
	case !source && has(p.sources, sum):
		return bad(fmt.Sprintf("has the destination %s, which is a source of the plan", a), "a plan cannot shift files in a ring or in a chain")
	case !source && above(a, func(s pathSum, d string) bool { in = d; return has(p.sources, s) }):
		return bad(fmt.Sprintf("has the destination %s inside %s, which a step of the plan moves away", a, in), "publish to a place outside every source")
	case !source && has(p.srcDirs, sum):
		return bad(fmt.Sprintf("has the destination %s, and a source of the plan lies inside it", a), "a plan cannot shift files in a ring or in a chain")
	case !source && above(a, func(s pathSum, d string) bool { in = d; return has(p.dests, s) }):
		return bad(fmt.Sprintf("has the destination %s inside %s, which another step publishes", a, in), "a published file or directory holds what its source held; name another place")
	case !source && has(p.destDirs, sum):
		return bad(fmt.Sprintf("publishes %s, and another step publishes something inside it", a), "a published file or directory holds what its source held; name another place")
	}
	dirs := p.destDirs
	if source {
		dirs = p.srcDirs
		p.sources[sum] = struct{}{}
		if use == SourceTree {
			p.trees[sum] = struct{}{}
		}
	} else {
		p.dests[sum] = struct{}{}
		if use == DestinationTree {
			p.destTrees[sum] = struct{}{}
		}
	}
	above(a, func(s pathSum, _ string) bool {
		known := has(dirs, s)
		dirs[s] = struct{}{}
		return known // its ancestors are known too
	})
	return nil
}

// claimCleanup runs after all claims of steps; p.mu is held.
func (p *Planning) claimCleanup(where string, a Address, sum pathSum) error {
	bad := func(problem, hint string) error { return &PlanError{Where: where, Problem: problem, Hint: hint} }
	var in string
	const elsewhere = "clean up a staging directory that nothing is published to"
	switch {
	case has(p.dests, sum):
		return bad(fmt.Sprintf("cleans up %s, which is a destination of the plan", a), elsewhere)
	case has(p.destDirs, sum):
		return bad(fmt.Sprintf("cleans up %s, and a destination of the plan lies inside it", a), elsewhere)
	case above(a, func(s pathSum, d string) bool { in = d; return has(p.dests, s) }):
		return bad(fmt.Sprintf("cleans up %s inside the destination %s of the plan", a, in), elsewhere)
	case has(p.cleanups, sum):
		return bad(fmt.Sprintf("cleans up %s twice", a), "name every cleanup path once")
	case above(a, func(s pathSum, d string) bool { in = d; return has(p.cleanups, s) }):
		return bad(fmt.Sprintf("cleans up %s inside %s, another cleanup path", a, in), "name the outer one only")
	case has(p.cleanDirs, sum):
		return bad(fmt.Sprintf("cleans up %s, and another cleanup path lies inside it", a), "name the outer one only")
	}
	p.cleanups[sum] = struct{}{}
	above(a, func(s pathSum, _ string) bool { p.cleanDirs[s] = struct{}{}; return false })
	return nil
}

func (p *Planning) isSource(a Address) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return has(p.sources, sumOf(a.Resource, a.Path)) ||
		above(a, func(s pathSum, _ string) bool { return has(p.trees, s) })
}

func (p *Planning) isDestination(a Address) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return has(p.dests, sumOf(a.Resource, a.Path)) ||
		above(a, func(s pathSum, _ string) bool { return has(p.destTrees, s) })
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
	p.locks[lock] = exclusive
	return nil
}

func (p *Planning) addMove(m WatermarkMove) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moves = append(p.moves, m)
}
