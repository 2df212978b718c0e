package powercut

import (
	"fmt"
	"io/fs"
	"iter"
	"math"
	"math/rand/v2"
	"path"
	"strings"
	"time"
)

// sector is what a disk writes as a whole.
const sector = 512

// State is what may be found after one power cut.
type State struct {
	Tree Tree
	// Notes were left (see [Mark]) before the power failed, oldest first.
	Notes []string
	// Lost says what the cut took, for messages.
	Lost string
}

// Had reports whether a note was left before the power failed.
func (s State) Had(note string) bool {
	for _, n := range s.Notes {
		if n == note {
			return true
		}
	}
	return false
}

// Options of States. Zero fields are the defaults.
type Options struct {
	// Exhaustive: when the changes in the air between two syncs allow at most
	// so many states, all of them are made. Default 1024.
	Exhaustive int
	// Samples is how many states are drawn in all for moments that allow more.
	// Default 1000. At each such moment the extremes come first: all lost, all
	// kept, one lost, one kept.
	Samples int
	Seed    uint64
}

// States yields every state that a power cut may leave, each once, in the
// order of the run. A state seen before and after a note is yielded for both.
func (rec *Recording) States(o Options) iter.Seq[State] {
	if o.Exhaustive == 0 {
		o.Exhaustive = 1024
	}
	if o.Samples == 0 {
		o.Samples = 1000
	}
	return func(yield func(State) bool) {
		cuts := rec.cuts()
		big := 0
		for _, c := range cuts {
			if c.count() > float64(o.Exhaustive) {
				big++
			}
		}
		type seenKey struct {
			sum   [32]byte
			notes int
		}
		seen := map[seenKey]bool{}
		for i, c := range cuts {
			rng := rand.New(rand.NewPCG(o.Seed, uint64(i)))
			for pick := range c.picks(o.Exhaustive, max(1, o.Samples/max(1, big)), rng) {
				t := c.build(pick, rng)
				k := seenKey{t.Sum(), len(c.notes)}
				if seen[k] {
					continue
				}
				seen[k] = true
				if !yield(State{Tree: t, Notes: c.notes, Lost: c.lost(pick)}) {
					return
				}
			}
		}
	}
}

// fate of one unit.
type fate uint8

const (
	lost fate = iota
	kept
	both // of a rename: the new name is there and the old one too
	torn // of a write: some sectors
)

// cut is a moment at which the power fails, right before a sync ends: later
// there is less to lose, and before less to keep.
type cut struct {
	rec   *Recording
	at    int
	fixed map[int]bool // units that are durable
	free  []int        // units that are not
	fates [][]fate     // of every free one
	notes []string
}

func (rec *Recording) cuts() []cut {
	var out []cut
	units, notes := -1, -1
	add := func(at int) {
		c := rec.cutAt(at)
		began := len(c.fixed) + len(c.free)
		if began != units || len(c.notes) != notes {
			out = append(out, c)
			units, notes = began, len(c.notes)
		}
	}
	for _, s := range rec.syncs {
		add(s.exit)
	}
	// The end is always looked at: there every obligation holds.
	units = -1
	add(math.MaxInt)
	return out
}

func (rec *Recording) cutAt(at int) cut {
	c := cut{rec: rec, at: at, fixed: map[int]bool{}}
	for i := range rec.units {
		u := &rec.units[i]
		if u.enter >= at {
			continue
		}
		var f []fate
		switch {
		case u.add != nil && u.del != nil:
			a, d := rec.synced(u, u.add.dir, at, false), rec.synced(u, u.del.dir, at, false)
			switch {
			case d:
			case rec.nodes[u.add.ino].Dir:
				if !a { // a directory has one name, never two
					f = []fate{lost, kept}
				}
			case a:
				f = []fate{both, kept}
			default:
				f = []fate{lost, both, kept}
			}
		case u.isEntry():
			dir := u.add
			if dir == nil {
				dir = u.del
			}
			if !rec.synced(u, dir.dir, at, false) {
				f = []fate{lost, kept}
			}
		default:
			if !rec.synced(u, u.ino, at, u.attr) {
				f = []fate{lost, kept}
			}
		}
		if f == nil {
			c.fixed[i] = true
			continue
		}
		c.free, c.fates = append(c.free, i), append(c.fates, f)
	}
	for _, m := range rec.marks {
		if m.at < at {
			c.notes = append(c.notes, m.note)
		}
	}
	return c
}

// synced reports whether a sync that covers inode ino began after u had ended
// and ended before at.
func (rec *Recording) synced(u *unit, ino, at int, attr bool) bool {
	for i := range rec.syncs {
		s := &rec.syncs[i]
		if s.enter > u.exit && s.exit < at && (s.all || s.ino == ino && !(attr && s.dataOnly)) {
			return true
		}
	}
	return false
}

func (c cut) count() float64 {
	n := 1.0
	for _, f := range c.fates {
		n *= float64(len(f))
	}
	return n
}

// picks yields one fate for every free unit. The slice is used again.
func (c cut) picks(exhaustive, samples int, rng *rand.Rand) iter.Seq[[]fate] {
	return func(yield func([]fate) bool) {
		pick := make([]fate, len(c.free))
		all := func(last bool) {
			for i, f := range c.fates {
				pick[i] = f[0]
				if last {
					pick[i] = f[len(f)-1]
				}
			}
		}
		random := func(tear bool) {
			for i, f := range c.fates {
				pick[i] = f[rng.IntN(len(f))]
				if u := &c.rec.units[c.free[i]]; tear && len(u.data) > sector && rng.IntN(2) == 0 {
					pick[i] = torn
				}
			}
		}
		if c.count() <= float64(exhaustive) {
			index := make([]int, len(c.free))
			for {
				for i := range index {
					pick[i] = c.fates[i][index[i]]
				}
				if !yield(pick) {
					return
				}
				i := 0
				for ; i < len(index); i++ {
					if index[i]++; index[i] < len(c.fates[i]) {
						break
					}
					index[i] = 0
				}
				if i == len(index) {
					break
				}
			}
			// Torn writes come on top, drawn.
			if c.tears() {
				for range 32 {
					if random(true); !yield(pick) {
						return
					}
				}
			}
			return
		}
		n := 0
		give := func() bool { n++; return yield(pick) && n < samples }
		for _, last := range []bool{false, true} {
			all(last)
			if !give() {
				return
			}
		}
		for i := range c.free {
			for _, last := range []bool{false, true} {
				all(last)
				f := c.fates[i]
				pick[i] = f[0]
				if !last {
					pick[i] = f[len(f)-1]
				}
				if !give() {
					return
				}
			}
		}
		for {
			if random(rng.IntN(2) == 0); !give() {
				return
			}
		}
	}
}

func (c cut) tears() bool {
	for _, i := range c.free {
		if len(c.rec.units[i].data) > sector {
			return true
		}
	}
	return false
}

func (c cut) lost(pick []fate) string {
	var out []string
	for i, f := range pick {
		if f != kept {
			out = append(out, [...]string{"lost", "", "both names of", "torn"}[f]+" "+c.rec.units[c.free[i]].text)
		}
	}
	if len(out) == 0 {
		return fmt.Sprintf("at line %d: nothing lost", c.at)
	}
	return fmt.Sprintf("at line %d: %s", c.at, strings.Join(out, ", "))
}

// build replays what is kept. A rename that is still in the air never loses its
// file with a directory: then it counts as the half that can be reached.
func (c cut) build(pick []fate, rng *rand.Rand) Tree {
	fates := make(map[int]fate, len(c.fixed)+len(c.free))
	for i := range c.fixed {
		fates[i] = kept
	}
	for i, n := range c.free {
		fates[n] = pick[i]
	}
	dirs := c.entries(fates)
	for range 3 {
		changed := false
		reached := c.reach(dirs)
		for i, n := range c.free {
			u := &c.rec.units[n]
			if u.add == nil || u.del == nil || reached[u.add.ino] {
				continue
			}
			switch {
			case fates[n] != lost && c.fates[i][0] == lost && reached[u.del.dir]:
				fates[n], changed = lost, true
			case fates[n] == lost && reached[u.add.dir]:
				fates[n], changed = kept, true
			}
		}
		if !changed {
			break
		}
		dirs = c.entries(fates)
	}
	t := Tree{}
	content := map[int]Node{}
	var walk func(p string, ino int)
	walk = func(p string, ino int) {
		n, ok := content[ino]
		if !ok {
			n = c.content(ino, fates, rng)
			content[ino] = n
		}
		t[p] = n
		for name, child := range dirs[ino] {
			walk(path.Join(p, name), child)
		}
	}
	walk(c.rec.root, c.rec.root0)
	return t
}

// entries are the directories after the kept changes.
func (c cut) entries(fates map[int]fate) map[int]map[string]int {
	dirs := make(map[int]map[string]int, len(c.rec.base))
	for ino, m := range c.rec.base {
		dirs[ino] = make(map[string]int, len(m))
		for name, child := range m {
			dirs[ino][name] = child
		}
	}
	for i := range c.rec.units {
		f, began := fates[i]
		u := &c.rec.units[i]
		if !began || f == lost || !u.isEntry() {
			continue
		}
		if u.del != nil && f != both && dirs[u.del.dir][u.del.name] == u.del.ino {
			delete(dirs[u.del.dir], u.del.name)
		}
		if u.add != nil {
			dirs[u.add.dir][u.add.name] = u.add.ino
		}
	}
	return dirs
}

func (c cut) reach(dirs map[int]map[string]int) map[int]bool {
	out := map[int]bool{}
	var walk func(int)
	walk = func(ino int) {
		if out[ino] {
			return
		}
		out[ino] = true
		for _, child := range dirs[ino] {
			walk(child)
		}
	}
	walk(c.rec.root0)
	return out
}

// content is the file or directory itself after the kept changes.
func (c cut) content(ino int, fates map[int]fate, rng *rand.Rand) Node {
	n := c.rec.nodes[ino]
	own := false
	change := func(size int64) {
		if size <= int64(len(n.Data)) && own {
			return
		}
		d := make([]byte, max(size, int64(len(n.Data))))
		copy(d, n.Data)
		n.Data, own = d, true
	}
	for i := range c.rec.units {
		u := &c.rec.units[i]
		f, began := fates[i]
		if !began || f == lost || u.isEntry() || u.ino != ino {
			continue
		}
		switch {
		case u.attr:
			if u.setMode {
				n.Mode = u.mode & fs.ModePerm
			}
			if u.uid >= 0 {
				n.UID = u.uid
			}
			if u.gid >= 0 {
				n.GID = u.gid
			}
			continue
		case u.resize:
			change(u.size)
			n.Data = n.Data[:u.size]
		default:
			change(u.off + int64(len(u.data)))
			for at := 0; at < len(u.data); at += sector {
				if f == torn && rng.IntN(2) == 0 {
					continue
				}
				copy(n.Data[u.off+int64(at):], u.data[at:min(at+sector, len(u.data))])
			}
		}
		if u.exit > 0 {
			n.MTime = time.Time{}
		}
	}
	return n
}
