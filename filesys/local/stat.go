//go:build linux

package local

import (
	"context"
	"encoding/hex"
	"fmt"
	"io/fs"
	"runtime"
	"strconv"
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
	// Almost always no link is in the way, and one call opens the thing itself.
	if rel, err := f.rel(p); err == nil && !f.noOpenat2 {
		fd, err := f.openThing(rel)
		if err == nil {
			defer unix.Close(fd)
			return f.infoOf(fd, p)
		}
	}
	d, name, err := f.openParent(p)
	if err != nil {
		return filesys.Info{}, err
	}
	defer d.close()
	return f.infoAt(d, name, p)
}

// openThing opens what is at rel, whatever it is, for looking at it. Links
// before the last element are ELOOP; a link in the last one is opened itself.
func (f *Files) openThing(rel string) (int, error) {
	defer runtime.KeepAlive(f)
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	root := int(f.rootDir.Fd())
	return retryInt(func() (int, error) { return unix.Openat2(root, rel, &how) })
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
		Path:    p,
		Dir:     kind == unix.S_IFDIR,
		Other:   kind != unix.S_IFDIR && kind != unix.S_IFREG,
		Special: special[kind],
		Size:    int64(st.Size),
		MTime:   time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec)).UTC(),
		// Two mounts of one device refuse renames between each other, so the
		// mount belongs to what must be equal.
		Device: deviceText(&st),
		Links:  int(st.Nlink),
		Mode:   goMode(uint32(st.Mode)),
		Owner:  f.names.user(st.Uid),
		Group:  f.names.group(st.Gid),
	}
	info.ID, err = f.identity(fd, &st)
	if err != nil {
		return filesys.Info{}, pathError("identify", p.Path, err)
	}
	return info, nil
}

// special names what is neither a file, a directory nor a link.
var special = map[uint16]string{
	unix.S_IFBLK:  "device",
	unix.S_IFCHR:  "device",
	unix.S_IFIFO:  "pipe",
	unix.S_IFSOCK: "socket",
}

func deviceText(st *unix.Statx_t) string {
	text := strconv.AppendUint(make([]byte, 0, 32), uint64(st.Dev_major), 10)
	text = append(text, ':')
	text = strconv.AppendUint(text, uint64(st.Dev_minor), 10)
	if st.Mask&unix.STATX_MNT_ID != 0 {
		text = append(text, '/')
		text = strconv.AppendUint(text, st.Mnt_id, 10)
	}
	return string(text)
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
			text := append(make([]byte, 0, 64), "handle:"...)
			text = strconv.AppendUint(text, uint64(uint32(h.Type())), 16)
			text = append(text, '-')
			return filesys.ID{Text: string(hex.AppendEncode(text, h.Bytes()))}, nil
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
