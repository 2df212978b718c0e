package store

import (
	"context"
	"fmt"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// PathKeeper is a store that knows which source and cleanup paths its sequences
// use and have used. Its Put refuses with *UsedPathError, and stores nothing,
//
//   - what stands in the way of Header.Used in another live sequence (see
//     [commitstep.UsedPaths.Conflict]);
//   - a root of Draft.Roots that an earlier sequence used, or that lies in or
//     holds one that an earlier sequence used, unless the header says
//     AcceptReusedPaths. A store that only one process can open leaves out the
//     roots that are not remote: a process that was frozen before an effect on
//     them keeps the store.
//
// What was used is remembered for ever, also when history is pruned: nobody
// knows how late an effect may come. Two puts at the same time never both get a
// path.
type PathKeeper interface {
	// FindUsed tells what Put would refuse; nil when nothing stands in the way.
	// It changes nothing.
	FindUsed(ctx context.Context, used *commitstep.UsedPaths, roots []commitstep.StagingRoot, accept bool) (*UsedPathError, error)
}

// UsedPathError says which path of a new sequence is taken. It matches
// commitstep.ErrPending while the other sequence is live, and
// commitstep.ErrPathReused otherwise.
type UsedPathError struct {
	// Path is the path itself, or a directory that holds it.
	Path commitstep.PathDigest
	// Below: not Path itself was used, but something below it.
	Below bool
	// Sequence is the newest that used Path, or for Below one of those.
	Sequence uuid.UUID
	Live     bool
}

func (e *UsedPathError) Error() string {
	what := "a path of the plan, or a directory that holds it,"
	if e.Below {
		what = "something below a path of the plan"
	}
	if e.Live {
		return fmt.Sprintf("%s belongs to sequence %s, which is still live", what, e.Sequence)
	}
	return fmt.Sprintf("%s was used by sequence %s", what, e.Sequence)
}

// Is makes errors.Is work for the two sentinels.
func (e *UsedPathError) Is(target error) bool {
	if e.Live {
		return target == commitstep.ErrPending
	}
	return target == commitstep.ErrPathReused
}

// CopyPath is a path that is remembered: the newest sequence that used it with
// all below it, and one that used something below it. Either may be uuid.Nil.
type CopyPath struct {
	Path     commitstep.PathDigest
	Sequence uuid.UUID
	Below    uuid.UUID
}
