package dfs

import (
	"context"
	"io"
)

// Status is what the name node tells of one file or directory.
type Status struct {
	// Name is the last element of the path, in a listing; "" else.
	Name      string
	FileID    uint64
	Dir       bool
	Symlink   bool
	Length    int64
	MTimeMS   int64
	Mode      uint16 // permission bits and the sticky bit
	Owner     string
	Group     string
	Children  int  // entries of a directory; -1 is unknown
	Encrypted bool // in an encryption zone
	Snapshots bool // a directory that may have snapshots
}

// Page is a part of a directory.
type Page struct {
	Entries []Status
	// More says that there may be further entries.
	More bool
	// Total is how many entries the directory has; -1 is unknown.
	Total int
}

// Access is what one may be asked to be allowed, the bits of a mode.
type Access uint8

// Enter is what a directory must allow to have entries made, moved or removed.
const Enter Access = 0o3

// Quota of a directory. A limit below zero is none.
type Quota struct {
	// Names are the files and directories below it, and itself.
	Names, MaxNames int64
	// Space is bytes on disk, of all replicas.
	Space, MaxSpace int64
}

// Transport carries calls to a name service. Paths are absolute and clean.
// Errors are those of package dfs: *RemoteError for an answer, else marked
// [NotExecuted] or [Lost]; a missing path matches fs.ErrNotExist. Calls that
// change something are never repeated inside once they may have been executed.
// Safe for concurrent use.
type Transport interface {
	Stat(ctx context.Context, path string) (Status, error)
	// Page gives entries of a directory in the name node's order, those behind
	// the name after; "" is from the start. The name need not be there.
	Page(ctx context.Context, dir, after string) (Page, error)
	// Mkdirs makes a directory and its parents. An existing one is success.
	Mkdirs(ctx context.Context, dir string) error
	// Rename never overwrites; filesys.ErrNoClobberUnsupported when it cannot
	// promise that.
	Rename(ctx context.Context, from, to string) error
	// Delete removes a file or an empty directory. A missing one is success.
	Delete(ctx context.Context, path string) error
	SetPermission(ctx context.Context, path string, mode uint16) error
	// SetOwner leaves what is empty.
	SetOwner(ctx context.Context, path, owner, group string) error
	// CheckAccess asks the name node whether this user may do something to what
	// is at the path; fs.ErrPermission. It knows superusers, groups and access
	// lists, which nobody else does.
	CheckAccess(ctx context.Context, path string, a Access) error
	// Quota of a directory. Of one that has none the name node counts the whole
	// tree to answer.
	Quota(ctx context.Context, dir string) (Quota, error)
	// Open reads a file's content from its start.
	Open(ctx context.Context, path string) (io.ReadCloser, error)
	// Namespace names the namespace that file ids belong to, with the way that
	// it was obtained in front. It may ask the name node.
	Namespace(ctx context.Context) (string, error)
}
