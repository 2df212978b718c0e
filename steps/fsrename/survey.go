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
}

// freshFor is how old a look of Verify may be for Execute to rely on it. On a
// remote file system a second look is as old as the way back when it arrives;
// what matters is that the rename itself never overwrites.
const freshFor = 2 * time.Second

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
	looks := f.StatAll(ctx, paths)
	for i, b := range sources {
		b.sight.from = &looks[i]
	}
	for i, b := range dests {
		b.sight.to = &looks[len(sources)+i]
	}
}

// statFrom and statTo look at the step's places, or take what the survey saw.
// parent says that the directory around is known to be there.

func (b *step) statFrom(ctx context.Context) (filesys.Info, error) {
	if l := b.sight.from; l != nil {
		b.sight.from = nil
		return l.Info, l.Err
	}
	return b.fs.Stat(ctx, b.from)
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
// destination free a moment ago, on a file system where looking again would
// prove no more.
func (b *step) freshSource() bool {
	c := b.fs.Capabilities()
	return c.Remote && c.NoClobber && !b.seen.IsZero() && time.Since(b.seen) < freshFor
}
