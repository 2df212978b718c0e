//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// privatePrefix starts the names of the directories (on a full disk: of the
// files) into which a file is moved to be looked at before it is removed.
const privatePrefix = ".commitstep-trash-"

// errStranded says that a file stayed in a private directory.
var errStranded = errors.New("the file now lies at")

// Remove removes exactly the file that want describes; see [filesys.FS].
//
// There is no call that removes a name only while it stands for a given file.
// So the file is moved into a directory of a random name, which nobody else
// moves anything into, and looked at there: what is foreign goes back to its
// name. If that was taken meanwhile the foreign file stays in the private
// directory and the error says where. What a process leaves that dies in
// between is finished by [Files.Sweep].
func (f *Files) Remove(ctx context.Context, want filesys.Info) error {
	if err := ctx.Err(); err != nil {
		return commitstep.NotSent(err)
	}
	if want.Dir {
		return commitstep.Permanent(fmt.Errorf("remove %q: it is a directory", want.Path.Path))
	}
	d, name, err := f.openParent(want.Path)
	if err != nil {
		return missingIsFine(err)
	}
	defer d.close()
	if name == "." {
		return commitstep.Permanent(fmt.Errorf("remove %q: it is the root", want.Path.Path))
	}
	got, err := f.infoAt(d, name, want.Path)
	if err != nil {
		return missingIsFine(err)
	}
	if !sameFile(got, want) {
		return commitstep.Refused(fmt.Errorf("remove %q: %w", want.Path.Path, filesys.ErrChanged))
	}
	return classify(f.removePrivately(d, name, func(d dir, name string) (bool, error) {
		got, err := f.infoAt(d, name, want.Path)
		return err == nil && sameFile(got, want), err
	}))
}

// sameFile compares what Remove must not mistake. Without ids size and time
// have to do.
func sameFile(got, want filesys.Info) bool {
	return !got.Dir && got.Other == want.Other && got.ID == want.ID && got.Size == want.Size && got.MTime.Equal(want.MTime)
}

// removePrivately removes name from d if ours, asked once the file is where
// nobody changes it, says so. A missing file is success.
func (f *Files) removePrivately(d dir, name string, ours func(dir, string) (bool, error)) error {
	private := privatePrefix + uuid.NewString()
	err := error(unix.ENOSPC)
	if !f.fullDisk {
		err = f.do(Op{Kind: OpMkdir, Path: d.join(private)}, d, private, func() error { return unix.Mkdirat(d.fd, private, 0o700) })
	}
	var trash dir
	victim := name
	switch err {
	case nil:
		fd, err := retryInt(func() (int, error) {
			return unix.Openat(d.fd, private, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		})
		if err != nil {
			return pathError("open directory", d.join(private), err)
		}
		trash = dir{fd, d.join(private)}
		defer trash.close()
		defer func() { _ = f.rmdirAt(d, private) }() // fails while something is left in it, as it should
	case unix.ENOSPC, unix.EDQUOT:
		// A full disk is when removing matters most: a new name in the same
		// directory mostly needs no space. The price is that a crash forgets
		// the name of a foreign file; Sweep then reports it.
		trash, victim = d, private
	default:
		return pathError("make directory", d.join(private), err)
	}
	if err := f.moveIn(d, name, trash, victim); err == unix.ENOENT {
		if _, err := statAt(d, name); err != nil {
			return missingIsFine(pathError("look at", d.join(name), err))
		}
		// It is there; what was missing is the private directory, which the
		// sweep of another process took for a forgotten one.
		return commitstep.Refused(fmt.Errorf("remove %q: another process is cleaning up here; try again", d.join(name)))
	} else if err != nil {
		return pathError("remove", d.join(name), err)
	}
	ok, err := ours(trash, victim)
	if err == nil && ok {
		err = f.unlinkAt(trash, victim)
		if err == nil || err == unix.ENOENT {
			return nil
		}
		err = pathError("remove", d.join(name), err)
	} else if errors.Is(err, fs.ErrNotExist) {
		return nil // a sweep of another process dealt with it
	} else if err == nil {
		err = fmt.Errorf("remove %q: %w", d.join(name), filesys.ErrChanged)
	}
	// Foreign, or not to be told, or not removable: back to its name.
	switch back := f.moveOut(trash, victim, d, name); {
	case back == nil || errors.Is(back, fs.ErrNotExist):
		return err
	default:
		return fmt.Errorf("%w; %w %q and could not be put back (%w): move it by hand", err, errStranded, trash.join(victim), back)
	}
}

// moveIn moves a file to a name that nobody else uses, so a file system
// without RENAME_NOREPLACE does as well.
func (f *Files) moveIn(src dir, sname string, private dir, pname string) error {
	err := f.renameNoReplace(src, sname, private, pname)
	switch err {
	case unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP:
		return f.do(Op{Kind: OpRename, Path: src.join(sname), To: private.join(pname)}, src, sname, func() error {
			return unix.Renameat(src.fd, sname, private.fd, pname)
		})
	}
	return err
}

// moveOut puts a file back from a name that nobody else uses; it never
// overwrites. Where that takes a link and an unlink, the private name needs no
// second look.
func (f *Files) moveOut(private dir, pname string, dst dir, dname string) error {
	err := f.renameNoReplace(private, pname, dst, dname)
	switch err {
	case unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP:
	default:
		return err
	}
	if f.noLink {
		return unix.EOPNOTSUPP
	}
	err = f.do(Op{Kind: OpLink, Path: private.join(pname), To: dst.join(dname)}, private, pname, func() error {
		return unix.Linkat(private.fd, pname, dst.fd, dname, 0)
	})
	if err != nil {
		return err
	}
	return f.unlinkAt(private, pname)
}

func (f *Files) unlinkAt(d dir, name string) error {
	return f.do(Op{Kind: OpUnlink, Path: d.join(name)}, d, name, func() error { return unix.Unlinkat(d.fd, name, 0) })
}

func (f *Files) rmdirAt(d dir, name string) error {
	return f.do(Op{Kind: OpRmdir, Path: d.join(name)}, d, name, func() error { return unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR) })
}

// RemoveDir removes an empty directory that still has want's id; see
// [filesys.FS]. A missing one is success. An empty directory that takes the
// name within the microseconds after the look can go in its place; what holds
// anything cannot.
func (f *Files) RemoveDir(ctx context.Context, want filesys.Info) error {
	if err := ctx.Err(); err != nil {
		return commitstep.NotSent(err)
	}
	d, name, err := f.openParent(want.Path)
	if err != nil {
		return missingIsFine(err)
	}
	defer d.close()
	if name == "." {
		return commitstep.Permanent(fmt.Errorf("remove directory %q: it is the root", want.Path.Path))
	}
	got, err := f.infoAt(d, name, want.Path)
	if err != nil {
		return missingIsFine(err)
	}
	if !got.Dir || got.ID != want.ID {
		return commitstep.Refused(fmt.Errorf("remove directory %q: %w", want.Path.Path, filesys.ErrChanged))
	}
	switch err := f.rmdirAt(d, name); err {
	case nil, unix.ENOENT:
		return nil
	case unix.ENOTEMPTY, unix.EEXIST:
		return commitstep.Refused(fmt.Errorf("remove directory %q: %w: %w", want.Path.Path, filesys.ErrNotEmpty, err))
	case unix.ENOTDIR:
		return commitstep.Refused(fmt.Errorf("remove directory %q: %w", want.Path.Path, filesys.ErrChanged))
	default:
		return classify(pathError("remove directory", want.Path.Path, err))
	}
}
