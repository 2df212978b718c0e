package fsrename

import (
	"context"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

// sight is what a survey saw for one step. Each look is used once, by the
// Prepare or Verify that follows at once.
type sight struct {
	from, to *filesys.Look
	at       time.Time // before the look at from was taken
}

// freshFor is how old a look of Verify may be for Execute to rely on it.
//
// Between a look and the rename the staged name can be given to a foreign file,
// which would then be published and only reported afterwards: a name node
// renames whatever has the name. A second look shortens that time to one round
// trip and cannot end it; what ends it is a staging path that nobody else uses.
// So the second look is worth its call where Verify's is older than a few round
// trips: when it looked at a whole batch of which this is a late step, when an
// attempt had to be recorded or a guard asked, when the process stood still. A
// process that died has no look at all, and the next one begins with Verify.
const freshFor = 100 * time.Millisecond

// survey looks at the places of many steps in few calls, where the file system
// can: at both when they are planned; later at the destinations, and at the
// sources of those whose destination is free.
func survey(ctx context.Context, steps []commitstep.CommitStep) {
	// By name: a file system need not be a comparable value.
	byFS := map[string][]*step{}
	for _, s := range steps {
		b, ok := s.(*step)
		if !ok {
			continue
		}
		if _, ok := b.fs.(filesys.BatchStater); ok {
			byFS[b.fs.Resource()] = append(byFS[b.fs.Resource()], b)
		}
	}
	for _, steps := range byFS {
		if len(steps) < 2 {
			continue // nothing to share
		}
		f := steps[0].fs.(filesys.BatchStater)
		var sources, dests []*step
		for _, b := range steps {
			b.sight = sight{}
			dests = append(dests, b)
			if b.evidence == nil {
				sources = append(sources, b)
			}
		}
		look(ctx, f, sources, dests)
		sources = nil
		for _, b := range steps {
			if b.evidence != nil && b.sight.from == nil && filesys.Missing(b.sight.to.Err) {
				sources = append(sources, b)
			}
		}
		look(ctx, f, sources, nil)
	}
}

func look(ctx context.Context, f filesys.BatchStater, sources, dests []*step) {
	if len(sources)+len(dests) == 0 {
		return
	}
	paths := make([]commitstep.Address, 0, len(sources)+len(dests))
	for _, b := range sources {
		paths = append(paths, b.from)
	}
	for _, b := range dests {
		paths = append(paths, b.to)
	}
	first := dests
	if len(sources) > 0 {
		first = sources
	}
	at := first[0].now()
	looks := f.StatAll(ctx, paths)
	for i, b := range sources {
		b.sight.from, b.sight.at = &looks[i], at
	}
	for i, b := range dests {
		b.sight.to = &looks[len(sources)+i]
	}
}

// statFrom and statTo look at the step's places, or take what the survey saw.
// at is before the look; parent says that the directory around is known to be
// there.

func (b *step) statFrom(ctx context.Context) (info filesys.Info, at time.Time, err error) {
	if l := b.sight.from; l != nil {
		b.sight.from = nil
		return l.Info, b.sight.at, l.Err
	}
	at = b.now()
	info, err = b.fs.Stat(ctx, b.from)
	return info, at, err
}

func (b *step) statTo(ctx context.Context) (info filesys.Info, parent bool, err error) {
	if l := b.sight.to; l != nil {
		b.sight.to = nil
		return l.Info, l.ParentSeen, l.Err
	}
	info, err = b.fs.Stat(ctx, b.to)
	return info, err == nil, err
}

// freshSource reports whether Verify found the source as planned and the
// destination free a moment ago. Looking again is dear on remote file systems
// only, and must not be left out where the rename does not look by itself at
// the destination.
func (b *step) freshSource() bool {
	c := b.fs.Capabilities()
	return c.Remote && c.NoClobber && !b.seen.IsZero() && b.now().Sub(b.seen) < freshFor
}

// parentSeen reports whether Verify saw the directory that the destination goes
// to, where that saves a call. Nothing rests on it: a rename into a directory
// that is gone is refused.
func (b *step) parentSeen() bool {
	c := b.fs.Capabilities()
	return c.Remote && c.NoClobber && b.parent
}
