//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"golang.org/x/sys/unix"
)

// Rename moves a file or directory and never overwrites; see [filesys.FS].
//
// Where the file system cannot be told not to overwrite, a file gets its new
// name by a hard link, which never replaces anything, and then loses the old
// one. A process that dies in between leaves one file with two names;
// [Files.DropSecondName] finishes that. Without hard links a file is not moved
// at all (ErrNoClobberUnsupported). A directory is looked for and then moved by
// rename(2), which can replace nothing but an empty directory.
func (f *Files) Rename(ctx context.Context, from, to commitstep.Address) error {
	if err := ctx.Err(); err != nil {
		return commitstep.NotSent(err)
	}
	if from.Contains(to) {
		return commitstep.Permanent(fmt.Errorf("rename %q to %q: the destination is the source or lies inside it", from.Path, to.Path))
	}
	if to.Contains(from) {
		return commitstep.Refused(fmt.Errorf("rename %q to %q: the source lies inside the destination: %w", from.Path, to.Path, fs.ErrExist))
	}
	src, sname, err := f.openParent(from)
	if err != nil {
		return classify(err)
	}
	defer src.close()
	dst, dname, err := f.openParent(to)
	if err != nil {
		return classify(err)
	}
	defer dst.close()
	if sname == "." || dname == "." {
		return commitstep.Permanent(fmt.Errorf("rename %q to %q: the root itself cannot be moved or replaced", from.Path, to.Path))
	}
	err = f.renameAt(src, sname, dst, dname)
	if err != nil {
		return classify(pathError("rename to "+fmt.Sprintf("%q", to.Path)+" from", from.Path, err))
	}
	return nil
}

// renameAt is Rename of open directories. Errors are errnos, or wrap them.
func (f *Files) renameAt(src dir, sname string, dst dir, dname string) error {
	err := f.renameNoReplace(src, sname, dst, dname)
	switch err {
	case unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP:
	default:
		return err
	}
	info, err := f.infoAt(src, sname, f.address(src.join(sname)))
	if err != nil {
		return err
	}
	if info.Dir {
		return f.moveDirByLook(src, sname, dst, dname)
	}
	return f.moveByLink(src, sname, dst, dname)
}

func (f *Files) renameNoReplace(src dir, sname string, dst dir, dname string) error {
	if f.noRenameat2 {
		return unix.ENOSYS
	}
	return f.do(Op{Kind: OpRename, Path: src.join(sname), To: dst.join(dname)}, src, sname, func() error {
		return unix.Renameat2(src.fd, sname, dst.fd, dname, unix.RENAME_NOREPLACE)
	})
}

func (f *Files) moveDirByLook(src dir, sname string, dst dir, dname string) error {
	f.replacesDirs.Store(true)
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstatat(dst.fd, dname, &st, unix.AT_SYMLINK_NOFOLLOW) }); err == nil {
		return unix.EEXIST
	} else if err != unix.ENOENT {
		return err
	}
	err := f.do(Op{Kind: OpRename, Path: src.join(sname), To: dst.join(dname)}, src, sname, func() error {
		return unix.Renameat(src.fd, sname, dst.fd, dname)
	})
	if err == unix.ENOTDIR { // a file took the name after the look
		return unix.EEXIST
	}
	return err
}

func (f *Files) moveByLink(src dir, sname string, dst dir, dname string) error {
	err := error(unix.EOPNOTSUPP)
	if !f.noLink {
		err = f.do(Op{Kind: OpLink, Path: src.join(sname), To: dst.join(dname)}, src, sname, func() error {
			return unix.Linkat(src.fd, sname, dst.fd, dname, 0)
		})
	}
	switch err {
	case nil:
	case unix.EPERM, unix.EOPNOTSUPP, unix.ENOSYS, unix.EMLINK:
		// EPERM is how file systems without links answer, and also a kernel
		// that protects the links of other users' files.
		return commitstep.Permanent(fmt.Errorf("%w: it has neither RENAME_NOREPLACE nor a hard link for this file (%w); publish to another file system, or own the staged file", filesys.ErrNoClobberUnsupported, err))
	default:
		return err
	}
	// The new name must be durable before the old one goes: a file system
	// that writes directories in any order could lose both to a power cut.
	if err := f.syncOpenDir(dst); err != nil {
		return err
	}
	return f.dropIfSame(src, sname, dst, dname)
}

// DropSecondName removes the name from if, and only if, it and to are the same
// regular file; see [filesys.FS]. Anything else, and a missing name, is left as
// it is and is no error.
func (f *Files) DropSecondName(ctx context.Context, from, to commitstep.Address) error {
	if err := ctx.Err(); err != nil {
		return commitstep.NotSent(err)
	}
	if from == to {
		return commitstep.Permanent(fmt.Errorf("drop the second name %q: it is the first name too", from.Path))
	}
	src, sname, err := f.openParent(from)
	if err != nil {
		return missingIsFine(err)
	}
	defer src.close()
	dst, dname, err := f.openParent(to)
	if err != nil {
		return missingIsFine(err)
	}
	defer dst.close()
	if src.join(sname) == dst.join(dname) {
		return nil // one name by two paths through a link
	}
	return classify(f.dropIfSame(src, sname, dst, dname))
}

func missingIsFine(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, filesys.ErrNotDirectory) {
		return nil
	}
	return classify(err)
}

// dropIfSame takes the name away privately first and looks again, so that a
// file which took the old name meanwhile is put back and not lost.
func (f *Files) dropIfSame(src dir, sname string, dst dir, dname string) error {
	to, err := statAt(dst, dname)
	if err == unix.ENOENT {
		return nil
	} else if err != nil {
		return pathError("look at", dst.join(dname), err)
	}
	// One inode on two mounts can be one directory entry under two paths, and
	// removing that would lose the file; so can one link, whatever the paths.
	if to.Nlink < 2 || to.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	same := func(v unix.Statx_t) bool {
		return v.Ino == to.Ino && v.Dev_major == to.Dev_major && v.Dev_minor == to.Dev_minor && v.Mnt_id == to.Mnt_id
	}
	from, err := statAt(src, sname)
	if err == unix.ENOENT {
		// A process that died here may have taken the name away and not yet
		// removed the file from its private directory.
		s := sweep{f: f, dir: src, addr: f.address(src.real), ours: func(i filesys.Info) bool {
			there, err := f.infoAt(dst, dname, f.address(dst.join(dname)))
			return err == nil && sameFile(i, there) && !i.ID.IsZero()
		}}
		return s.run()
	} else if err != nil {
		return pathError("look at", src.join(sname), err)
	}
	if !same(from) {
		return nil
	}
	err = f.removePrivately(src, sname, func(d dir, name string) (bool, error) {
		if to, err = statAt(dst, dname); err == unix.ENOENT {
			return false, nil // the other name went meanwhile: this is the last
		} else if err != nil {
			return false, err
		}
		v, err := statAt(d, name)
		return err == nil && same(v) && to.Nlink >= 2, err
	})
	if errors.Is(err, filesys.ErrChanged) && !errors.Is(err, errStranded) {
		return nil // it is not the same file any more
	}
	return err
}

func statAt(d dir, name string) (unix.Statx_t, error) {
	var st unix.Statx_t
	err := retry(func() error {
		return unix.Statx(d.fd, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st)
	})
	if err == unix.ENAMETOOLONG {
		err = unix.ENOENT // nothing can be there
	}
	return st, err
}
