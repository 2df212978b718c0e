package filesys

import (
	"context"
	"errors"
	"io/fs"

	"github.com/commitstep/engine/commitstep"
)

// Sweeper is an optional ability of an [FS] whose Remove moves a file into a
// private place before it looks at it: a process that dies in between leaves
// the file there, and Sweep finishes for it.
type Sweeper interface {
	// Sweep deals with the private places directly inside dir. A file that
	// ours accepts is removed, any other goes back to its name unless that is
	// taken. ours is asked with the Info under the file's original path; where
	// that was forgotten the path is the private one. With look nothing is
	// changed. It may be repeated and run while other processes remove files
	// in dir. A missing dir is no error.
	Sweep(ctx context.Context, dir commitstep.Address, ours func(Info) bool, look bool) (Swept, error)
}

// Swept is what a Sweep found.
type Swept struct {
	// Todo counts what was, or with look would be, changed.
	Todo int
	// Stays says, a sentence each, what is left in private places and why.
	Stays []string
}

// PlanChecker is an optional ability of an [FS]: what can be known before a
// plan is stored about a move that could never succeed, and cannot be seen
// with Stat alone: permissions, file systems behind links, quota, zones.
type PlanChecker interface {
	// CheckMove only reads. from exists. The error matches
	// [ErrOtherFileSystem], [ErrNotDirectory], [ErrEscapes], [ErrQuota],
	// [ErrNameTooLong] or fs.ErrPermission where one of them is the reason.
	CheckMove(ctx context.Context, from, to commitstep.Address) error
}

// WriterChecker is an optional ability of an [FS]: it knows which files are
// still being written.
type WriterChecker interface {
	// Writing reports whether a writer has the file open. errors.ErrUnsupported
	// when this connection cannot tell.
	Writing(ctx context.Context, p commitstep.Address) (bool, error)
}

// Finder is an optional ability of an [FS] with stable ids.
type Finder interface {
	// Find says where the file or directory with this identity is now. It is
	// not atomic: what moves meanwhile may not be found. fs.ErrNotExist when
	// nothing has the identity any more, errors.ErrUnsupported when this
	// connection cannot tell.
	Find(ctx context.Context, id ID) (commitstep.Address, error)
}

// ServerLister is an optional ability of an [FS] that several servers serve.
type ServerLister interface {
	// Servers asks every configured address by itself which namespace it has. All
	// of them must have the same.
	Servers(ctx context.Context) []Server
}

// Server is one address of a file system.
type Server struct {
	Address string
	// Namespace is unique to one namespace of one cluster. "" when Err says why it
	// is not known.
	Namespace string
	Err       error
}

// BatchStater is an optional ability of an [FS]: many looks for the price of a
// few calls.
type BatchStater interface {
	// StatAll looks at every path as Stat does, each not earlier than the call.
	// The results are in the order of the paths.
	StatAll(ctx context.Context, paths []commitstep.Address) []Look
}

// Look is a result of StatAll.
type Look struct {
	Info Info
	Err  error
	// ParentSeen: the directory that the path is in was seen to be one.
	ParentSeen bool
}

// SameMethod reports whether two identities were obtained in the same way, so
// that being different means two files. Identities of different ways (a
// process that may not read file handles meets the evidence of one that may)
// cannot be compared at all.
func (i ID) SameMethod(o ID) bool {
	method := func(t string) string {
		for n := range len(t) {
			if t[n] == ':' {
				return t[:n]
			}
		}
		return t
	}
	return !i.IsZero() && !o.IsZero() && method(i.Text) == method(o.Text)
}

// Missing reports whether err of a read means that nothing is at the path.
func Missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotDirectory)
}
