//go:build linux

package local

import "golang.org/x/sys/unix"

// OpKind names a change to the file system.
type OpKind string

// Kinds of changes.
const (
	OpMkdir    OpKind = "mkdir"
	OpRename   OpKind = "rename"
	OpLink     OpKind = "link"
	OpUnlink   OpKind = "unlink"
	OpRmdir    OpKind = "rmdir"
	OpChown    OpKind = "chown"
	OpChmod    OpKind = "chmod"
	OpSyncFile OpKind = "syncfile" // fsync of a file
	OpSyncDir  OpKind = "syncdir"  // fsync of a directory
	OpSyncFS   OpKind = "syncfs"   // sync of the whole file system that holds Path
)

// Op is one change, reported twice: before it is made, and after it succeeded.
type Op struct {
	Kind  OpKind
	After bool
	// Path is absolute and without links; To is the new name of a rename or
	// link.
	Path, To string
	// Inode of the file or directory that is changed or synced; 0 before a
	// mkdir.
	Inode uint64
}

// do makes a change to name in d and reports it.
func (f *Files) do(op Op, d dir, name string, fn func() error) error {
	if f.trace == nil {
		return retry(fn)
	}
	op.Inode = inodeAt(d.fd, name)
	f.trace(op)
	if err := retry(fn); err != nil {
		return err
	}
	if op.Kind == OpMkdir {
		op.Inode = inodeAt(d.fd, name)
	}
	op.After = true
	f.trace(op)
	return nil
}

func inodeAt(fd int, name string) uint64 {
	var st unix.Stat_t
	if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return 0
	}
	return st.Ino
}
