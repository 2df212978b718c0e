//go:build linux

package local

import (
	"context"
	"fmt"
	"io/fs"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"golang.org/x/sys/unix"
)

// Stat does not follow a link in the last element; see [filesys.FS].
func (f *Files) Stat(ctx context.Context, p commitstep.Address) (filesys.Info, error) {
	if err := ctx.Err(); err != nil {
		return filesys.Info{}, err
	}
	d, name, err := f.openParent(p)
	if err != nil {
		return filesys.Info{}, err
	}
	defer d.close()
	return f.infoAt(d, name, p)
}

// infoAt holds the thing open while it looks, so that all it says is about one
// file, whatever is renamed meanwhile.
func (f *Files) infoAt(d dir, name string, p commitstep.Address) (filesys.Info, error) {
	fd, err := retryInt(func() (int, error) {
		return unix.Openat(d.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return filesys.Info{}, pathError("look at", p.Path, err)
	}
	defer unix.Close(fd)
	return f.infoOf(fd, p)
}

func (f *Files) infoOf(fd int, p commitstep.Address) (filesys.Info, error) {
	var st unix.Statx_t
	err := retry(func() error {
		return unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME|unix.STATX_MNT_ID, &st)
	})
	if err != nil {
		return filesys.Info{}, pathError("look at", p.Path, err)
	}
	kind := st.Mode & unix.S_IFMT
	info := filesys.Info{
		Path:  p,
		Dir:   kind == unix.S_IFDIR,
		Other: kind != unix.S_IFDIR && kind != unix.S_IFREG,
		Size:  int64(st.Size),
		MTime: time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec)).UTC(),
		// Two mounts of one device refuse renames between each other, so the
		// mount belongs to what must be equal.
		Device: fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor),
		Mode:   goMode(uint32(st.Mode)),
		Owner:  f.names.user(st.Uid),
		Group:  f.names.group(st.Gid),
	}
	if st.Mask&unix.STATX_MNT_ID != 0 {
		info.Device += fmt.Sprintf("/%d", st.Mnt_id)
	}
	info.ID, err = f.identity(fd, &st)
	if err != nil {
		return filesys.Info{}, pathError("identify", p.Path, err)
	}
	return info, nil
}

// identity is the file handle (inode and generation on most file systems), else
// inode and birth time, else nothing.
func (f *Files) identity(fd int, st *unix.Statx_t) (filesys.ID, error) {
	if f.noIDs {
		return filesys.ID{}, nil
	}
	dev := unix.Mkdev(st.Dev_major, st.Dev_minor)
	unstable, known := f.unstable.Load(dev)
	if !known {
		u, err := inodesMadeUp(fd)
		if err != nil {
			return filesys.ID{}, err
		}
		unstable = u
		f.unstable.Store(dev, u)
	}
	if unstable.(bool) {
		return filesys.ID{}, nil
	}
	if !f.noHandles {
		h, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH)
		if err == nil {
			return filesys.ID{Text: fmt.Sprintf("handle:%x-%x", uint32(h.Type()), h.Bytes())}, nil
		}
		switch err {
		case unix.EOPNOTSUPP, unix.ENOSYS, unix.EPERM, unix.EOVERFLOW, unix.EINVAL:
		default:
			return filesys.ID{}, err
		}
	}
	if st.Mask&unix.STATX_BTIME != 0 && (st.Btime.Sec != 0 || st.Btime.Nsec != 0) {
		return filesys.ID{Text: fmt.Sprintf("btime:%d-%d.%09d", st.Ino, st.Btime.Sec, st.Btime.Nsec)}, nil
	}
	return filesys.ID{}, nil
}

// inodesMadeUp reports file systems whose inode numbers belong to the mount or
// to the memory of a server process instead of to the file: after an eviction
// or a restart the same file has another one.
func inodesMadeUp(fd int) (bool, error) {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return false, err
	}
	switch uint32(st.Type) {
	case unix.MSDOS_SUPER_MAGIC, unix.EXFAT_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC,
		unix.SMB_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.V9FS_MAGIC:
		return true, nil
	}
	return false, nil
}

func goMode(m uint32) fs.FileMode {
	mode := fs.FileMode(m & 0o777)
	if m&unix.S_ISUID != 0 {
		mode |= fs.ModeSetuid
	}
	if m&unix.S_ISGID != 0 {
		mode |= fs.ModeSetgid
	}
	if m&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}
