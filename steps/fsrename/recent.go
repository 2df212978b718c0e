package fsrename

import (
	"sync"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

// recent remembers for a moment what Prepare saw of a step on a remote file
// system, so that the first Verify, which follows as soon as the plan is
// stored, need not ask again. Another process never has it, so a recovery
// always looks for itself. What changes in that moment is found by the rename,
// which never overwrites, and by the look after it. Safe for concurrent use.
type recent struct {
	mu sync.Mutex
	m  map[[2]commitstep.Address]glimpse
}

// glimpse is a source as planned and a free destination.
type glimpse struct {
	src    filesys.Info
	parent bool
	at     time.Time
}

// maxRecent bounds the memory of long plans, whose steps run much later than
// they are prepared anyway.
const maxRecent = 4096

func (r *recent) keep(from, to commitstep.Address, g glimpse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.m) >= maxRecent {
		for k, old := range r.m {
			if g.at.Sub(old.at) >= freshFor {
				delete(r.m, k)
			}
		}
		if len(r.m) >= maxRecent {
			return
		}
	}
	if r.m == nil {
		r.m = map[[2]commitstep.Address]glimpse{}
	}
	r.m[[2]commitstep.Address{from, to}] = g
}

// take gives a glimpse away, once.
func (r *recent) take(from, to commitstep.Address) (glimpse, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := [2]commitstep.Address{from, to}
	g, ok := r.m[k]
	delete(r.m, k)
	return g, ok && time.Since(g.at) < freshFor
}
