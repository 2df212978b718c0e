//go:build linux

package local

import (
	"context"
	"errors"
	"sync"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"golang.org/x/sys/unix"
)

// maxDurable bounds the entries remembered. Forgetting one costs an fsync.
const maxDurable = 1 << 16

// entry is one name in one directory: an entry stays durable as long as the
// same thing has the same name in the same directory.
type entry struct {
	path       string
	id, parent filesys.ID
}

type durableSet struct {
	mu sync.Mutex
	m  map[entry]struct{}
}

func (s *durableSet) has(e entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.m[e]
	return ok
}

func (s *durableSet) add(es []entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil || len(s.m)+len(es) > maxDurable {
		s.m = make(map[entry]struct{}, len(es))
	}
	for _, e := range es {
		s.m[e] = struct{}{}
	}
}

// SyncFile makes a file's content and attributes durable; see [filesys.FS].
func (f *Files) SyncFile(ctx context.Context, p commitstep.Address) error {
	if err := ctx.Err(); err != nil {
		return commitstep.NotSent(err)
	}
	d, name, err := f.openParent(p)
	if err != nil {
		return err
	}
	defer d.close()
	r, err := openForReading(d, name)
	if errors.Is(err, unix.EACCES) {
		return pathError("sync", p.Path, f.syncFS(d)) // ours to move, not to read
	}
	if err != nil {
		return pathError("sync", p.Path, err)
	}
	defer r.Close()
	err = f.do(Op{Kind: OpSyncFile, Path: d.join(name)}, d, name, func() error { return unix.Fsync(int(r.Fd())) })
	return pathError("sync", p.Path, err)
}

// SyncDir makes the entries of a directory durable, and the directory's own
// entry in its parent, and so on up to the root; see [filesys.FS].
//
// It does not ask who made the directory: another dataset's run may have made
// it a moment ago and not have settled yet, and then a file synced below it
// would still disappear with it in a power cut. An ancestor is skipped only if
// this process has synced that very entry before. Errors are never remembered
// as success.
func (f *Files) SyncDir(ctx context.Context, a commitstep.Address) error {
	if err := ctx.Err(); err != nil {
		return commitstep.NotSent(err)
	}
	d, err := f.openDir(a)
	if err != nil {
		return err
	}
	// What is at the path is looked at before its parent is synced, so that
	// only what the sync covered is remembered.
	info, err := f.infoOf(d.fd, f.address(d.real))
	if err == nil {
		err = f.syncOpenDir(d)
	}
	if err != nil {
		d.close()
		return err
	}
	return f.syncAbove(ctx, d, info)
}

// syncAbove makes the entry of the open directory d durable, and those of all
// directories above it, unless this process knows them to be. It closes d.
func (f *Files) syncAbove(ctx context.Context, d dir, info filesys.Info) error {
	defer func() { d.close() }()
	known := chain(d, info)
	var fresh []entry
	for d.real != f.realRoot {
		if err := ctx.Err(); err != nil {
			return err
		}
		rel, _ := below(f.realRoot, f.address(d.real).Dir().Path)
		fd, err := f.openPlain(rel)
		if err != nil {
			return pathError("open directory", f.address(d.real).Dir().Path, err)
		}
		parent := dir{fd, f.address(d.real).Dir().Path}
		up, err := f.infoOf(fd, f.address(parent.real))
		if err != nil {
			parent.close()
			return err
		}
		e := entry{d.real, info.ID, up.ID}
		if info.ID.IsZero() || up.ID.IsZero() || !f.durable.has(e) {
			if err := f.syncOpenDir(parent); err != nil {
				parent.close()
				return err
			}
			if !info.ID.IsZero() && !up.ID.IsZero() {
				fresh = append(fresh, e)
			}
		}
		d.close()
		d, info = parent, up
	}
	if !known.id.IsZero() {
		fresh = append(fresh, known)
	}
	f.durable.add(fresh)
	return nil
}

// chain stands for the entries of d and of all directories above it. It is only
// asked before a rename, which is settled by a full SyncDir in any case.
func chain(d dir, info filesys.Info) entry { return entry{d.real, info.ID, filesys.ID{}} }

// syncOpenDir is an fsync of one directory. One that cannot be read cannot be
// synced alone, and some file systems sync no directories: then the whole file
// system is synced.
func (f *Files) syncOpenDir(d dir) error {
	r, err := openForReading(d, ".")
	if errors.Is(err, unix.EACCES) {
		return pathError("sync directory", d.real, f.syncFS(d))
	}
	if err != nil {
		return pathError("sync directory", d.real, err)
	}
	defer r.Close()
	err = f.do(Op{Kind: OpSyncDir, Path: d.real}, d, ".", func() error { return unix.Fsync(int(r.Fd())) })
	if err == unix.EINVAL || err == unix.EOPNOTSUPP {
		err = f.do(Op{Kind: OpSyncFS, Path: d.real}, d, ".", func() error { return unix.Syncfs(int(r.Fd())) })
	}
	return pathError("sync directory", d.real, err)
}

// syncFS syncs the file system of d, which need not be readable: the nearest
// ancestor on the same device that is serves as the handle.
func (f *Files) syncFS(d dir) error {
	var want unix.Stat_t
	if err := unix.Fstat(d.fd, &want); err != nil {
		return err
	}
	for p := f.address(d.real); ; p = p.Dir() {
		rel, ok := below(f.realRoot, p.Path)
		if !ok {
			return unix.EACCES
		}
		fd, err := f.openPlain(rel)
		if err != nil {
			return err
		}
		up := dir{fd, p.Path}
		r, err := openForReading(up, ".")
		if err != nil {
			up.close()
			if rel == "." {
				return err
			}
			continue
		}
		var st unix.Stat_t
		err = unix.Fstat(int(r.Fd()), &st)
		if err == nil && st.Dev != want.Dev {
			err = unix.EACCES
		}
		if err == nil {
			err = f.do(Op{Kind: OpSyncFS, Path: d.real}, d, ".", func() error { return unix.Syncfs(int(r.Fd())) })
		}
		r.Close()
		up.close()
		return err
	}
}
