// Package filesys is what the file steps need of a file system: identity,
// listing, and a rename that never overwrites. It defines the contract;
// filesys/local (and later hdfs and webhdfs) implement it, filesys/fstest
// proves that they do. It must not know plans, stores or drivers.
package filesys

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"time"

	"github.com/commitstep/engine/commitstep"
)

// Errors of a file system, wrapped with the path. ErrNotExist and ErrExist are
// those of io/fs.
var (
	// ErrOtherFileSystem: source and destination do not share a file system,
	// so no rename can be atomic.
	ErrOtherFileSystem = errors.New("source and destination are on different file systems")
	// ErrEscapes: the path, or a link in it, leaves the resource.
	ErrEscapes = errors.New("the path leaves its resource")
	// ErrNotDirectory: something in the path is not a directory.
	ErrNotDirectory = errors.New("not a directory")
	// ErrNotEmpty: the directory to be removed is not empty.
	ErrNotEmpty = errors.New("directory not empty")
	// ErrChanged: the thing at the path is not the one that was meant; nothing
	// was removed.
	ErrChanged = errors.New("another file is at this path now")
	// ErrNoClobberUnsupported: this file system cannot rename without the risk
	// of overwriting.
	ErrNoClobberUnsupported = errors.New("the file system has no rename that never overwrites")
	// ErrQuota: a quota leaves no room.
	ErrQuota = errors.New("a quota is used up")
	// ErrNameTooLong: nothing can have this name or path here. A read's error
	// matches fs.ErrNotExist too: what cannot be there is not.
	ErrNameTooLong = errors.New("the name or path is longer than this file system takes")
)

// NotConfiguredError: nobody gave a file system for the addresses of a resource.
type NotConfiguredError struct{ Resource string }

func (e *NotConfiguredError) Error() string {
	return "no file system is configured for " + e.Resource
}

// ID tells one file or directory from every other that ever had its path. The
// zero ID means that the file system has no stable identity.
type ID struct {
	// Text is opaque: cluster and file id, or inode and generation, with the
	// way it was obtained in front: "handle:…", "btime:…".
	Text string `json:"id,omitempty"`
}

// IsZero reports that there is no identity.
func (i ID) IsZero() bool { return i.Text == "" }

// Info is what Stat tells. Symbolic links are not followed in the last element.
type Info struct {
	Path  commitstep.Address
	ID    ID
	Dir   bool
	Other bool // neither a regular file nor a directory
	// Special says what an Other is, "device", "pipe" or "socket"; "" is a
	// symbolic link, or unknown.
	Special string
	Size    int64
	MTime   time.Time
	// Links is how many names a file has; 0 is unknown.
	Links int
	// Device groups paths that can be renamed into each other; "" is unknown.
	Device string
	Mode   fs.FileMode // permission bits with setuid, setgid, sticky
	Owner  string      // name, or the number where it has no name
	Group  string
}

// Attributes are changes asked for; empty fields stay as they are.
type Attributes struct {
	Mode  string `json:"mode,omitempty"` // octal, "0640"
	Owner string `json:"owner,omitempty"`
	Group string `json:"group,omitempty"`
}

// IsZero reports that nothing is asked for.
func (a Attributes) IsZero() bool { return a == Attributes{} }

// Capabilities of one connection to a file system.
type Capabilities struct {
	// StableIDs: Info.ID survives a rename and is never reused.
	StableIDs bool
	// NoClobber: Rename of a file never overwrites, atomically.
	NoClobber bool
	// ReplacesEmptyDir: Rename of a directory may replace an empty one.
	ReplacesEmptyDir bool
	// Sync: SyncFile and SyncDir do something. Where it is false nothing is to
	// be settled after a Rename: it is durable and leaves no second name.
	Sync bool
	// Remote: every call crosses a network, so looks are worth sharing.
	Remote bool
	// NeedsLength: a file that is still being written cannot be told from a
	// finished one, so a plan must say how long what it publishes is.
	NeedsLength bool
	// BlursNotDirectory: Stat and List below a file may say fs.ErrNotExist
	// where others say ErrNotDirectory.
	BlursNotDirectory bool
}

// FS is one named resource. All paths given to it are resolved addresses of
// that resource. Safe for concurrent use. Errors of calls that change
// something are classified (commitstep.NotSent, Refused, Permanent); an
// unclassified one is an unknown outcome. Reads return plain errors.
type FS interface {
	// Resource is the first part of this file system's addresses: "file".
	Resource() string
	// Resolve turns a plan's text into an address of this resource; relative
	// text starts at base, or at the root given to the file system when base
	// is "". It refuses (with *commitstep.PlanError) what leaves the root.
	Resolve(text, base string) (commitstep.Address, error)
	Capabilities() Capabilities

	// Stat does not follow a link in the last element. fs.ErrNotExist when the
	// path or a directory in it is missing; ErrNotDirectory when a file is
	// where a directory must be; ErrEscapes.
	Stat(ctx context.Context, p commitstep.Address) (Info, error)
	// List yields the entries of a directory, in no order.
	List(ctx context.Context, dir commitstep.Address) iter.Seq2[Info, error]
	// Digest is a SHA-256 of a file's content, for file systems without ids.
	Digest(ctx context.Context, p commitstep.Address) (string, error)

	// MkdirAll makes the directory and its parents; existing ones are fine.
	MkdirAll(ctx context.Context, dir commitstep.Address) error
	// Rename moves a file or directory and never overwrites: fs.ErrExist when
	// the destination is there. The parent must exist.
	Rename(ctx context.Context, from, to commitstep.Address) error
	// DropSecondName removes the name from if, and only if, it and to are the
	// same file, which a crash can leave where Rename is a link and an unlink.
	DropSecondName(ctx context.Context, from, to commitstep.Address) error
	SetAttributes(ctx context.Context, p commitstep.Address, a Attributes) error
	// HasAttributes reports whether info shows what a asks for.
	HasAttributes(info Info, a Attributes) (bool, error)
	// Remove removes exactly the file that want describes (path, id, size,
	// mtime), never another that took its path: ErrChanged. A missing file is
	// success. RemoveDir removes an empty directory that still has want's id.
	Remove(ctx context.Context, want Info) error
	RemoveDir(ctx context.Context, want Info) error

	// SyncFile makes a file's content durable; SyncDir the entries of a
	// directory, and the directory's own entry, and its parents', up to the
	// root unless this process knows them durable already.
	SyncFile(ctx context.Context, p commitstep.Address) error
	SyncDir(ctx context.Context, dir commitstep.Address) error
}
