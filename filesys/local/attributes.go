//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"sync"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"golang.org/x/sys/unix"
)

// SetAttributes changes owner, group and mode of the file or directory itself,
// never of a link's target; see [filesys.FS]. The owner is set before the mode,
// since the kernel clears the setuid and setgid bits when the owner changes.
//
// It does not sync: a run that dies after it and before its own fsync leaves
// attributes that the next run finds in place without having set them, so the
// fsync belongs where effects are made durable ([Files.SyncFile] when a stage
// is settled), not here.
func (f *Files) SetAttributes(ctx context.Context, p commitstep.Address, a filesys.Attributes) error {
	if err := ctx.Err(); err != nil {
		return commitstep.NotSent(err)
	}
	w, err := parseAttributes(a)
	switch {
	case errors.Is(err, errLookup):
		return commitstep.NotSent(err) // the user database does not answer
	case errors.Is(err, errMode):
		return commitstep.Permanent(err)
	case err != nil:
		return commitstep.Refused(err) // a missing user can be created
	}
	d, name, err := f.openParent(p)
	if err != nil {
		return classify(err)
	}
	defer d.close()
	fd, err := retryInt(func() (int, error) {
		return unix.Openat(d.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return classify(pathError("set attributes of", p.Path, err))
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return classify(pathError("set attributes of", p.Path, err))
	}
	if k := st.Mode & unix.S_IFMT; k != unix.S_IFREG && k != unix.S_IFDIR {
		return commitstep.Permanent(fmt.Errorf("set attributes of %q: it is neither a file nor a directory", p.Path))
	}
	if w.uid >= 0 && uint32(w.uid) != st.Uid || w.gid >= 0 && uint32(w.gid) != st.Gid {
		err := f.do(Op{Kind: OpChown, Path: d.join(name)}, d, name, func() error {
			return unix.Fchownat(fd, "", w.uid, w.gid, unix.AT_EMPTY_PATH)
		})
		if err != nil {
			return classify(pathError(fmt.Sprintf("set owner %q and group %q of", a.Owner, a.Group), p.Path, err))
		}
	}
	if w.mode >= 0 {
		err := f.do(Op{Kind: OpChmod, Path: d.join(name)}, d, name, func() error { return chmodFD(fd, uint32(w.mode)) })
		if err != nil {
			return classify(pathError("set mode "+a.Mode+" of", p.Path, err))
		}
	}
	return nil
}

// chmodFD changes the mode of what fd holds open. Kernels before 6.6 can do
// that for such a descriptor only by its name in /proc.
func chmodFD(fd int, mode uint32) error {
	err := unix.Fchmodat(fd, "", mode, unix.AT_EMPTY_PATH)
	if err == unix.ENOSYS || err == unix.EOPNOTSUPP || err == unix.EINVAL {
		return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode)
	}
	return err
}

// HasAttributes reports whether info shows what a asks for; see [filesys.FS].
// A malformed mode, or a user or group that this machine does not know, is an
// error.
func (f *Files) HasAttributes(info filesys.Info, a filesys.Attributes) (bool, error) {
	w, err := parseAttributes(a)
	if err != nil {
		return false, err
	}
	if w.mode >= 0 && info.Mode != goMode(uint32(w.mode)) {
		return false, nil
	}
	if w.uid >= 0 {
		if have, err := userID(info.Owner); err != nil || have != w.uid {
			return false, err
		}
	}
	if w.gid >= 0 {
		if have, err := groupID(info.Group); err != nil || have != w.gid {
			return false, err
		}
	}
	return true, nil
}

// wanted holds -1 for what stays as it is.
type wanted struct{ mode, uid, gid int }

func parseAttributes(a filesys.Attributes) (w wanted, err error) {
	w = wanted{-1, -1, -1}
	if a.Mode != "" {
		m, err := strconv.ParseUint(a.Mode, 8, 32)
		if err != nil || m > 0o7777 {
			return w, fmt.Errorf("%w: %q is not an octal number from 0 to 7777", errMode, a.Mode)
		}
		w.mode = int(m)
	}
	if a.Owner != "" {
		if w.uid, err = userID(a.Owner); err != nil {
			return w, err
		}
	}
	if a.Group != "" {
		if w.gid, err = groupID(a.Group); err != nil {
			return w, err
		}
	}
	return w, nil
}

// Reasons why attributes cannot be understood.
var (
	errMode   = errors.New("wrong mode")
	errLookup = errors.New("the user database does not answer")
)

// userID reads a name, or a number where no such name exists, as chown(1) does.
func userID(text string) (int, error) {
	u, err := user.Lookup(text)
	if err == nil {
		return parseID("user", u.Uid)
	}
	var unknown user.UnknownUserError
	return idOrError("user", text, err, errors.As(err, &unknown))
}

func groupID(text string) (int, error) {
	g, err := user.LookupGroup(text)
	if err == nil {
		return parseID("group", g.Gid)
	}
	var unknown user.UnknownGroupError
	return idOrError("group", text, err, errors.As(err, &unknown))
}

func idOrError(what, text string, err error, unknown bool) (int, error) {
	id, numErr := parseID(what, text)
	if numErr != nil && !unknown {
		return 0, fmt.Errorf("%s %q: %w: %w", what, text, errLookup, err)
	}
	return id, numErr
}

func parseID(what, text string) (int, error) {
	// The largest number means "no change" to the kernel.
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 1<<32-1 {
		return 0, fmt.Errorf("%s %q is not known on this machine and is no number; create it or correct the plan", what, text)
	}
	return int(n), nil
}

// nameTTL bounds how long a changed user or group name goes unnoticed.
const nameTTL = time.Minute

// nameCache spares a read of the user database for every file looked at.
type nameCache struct {
	mu            sync.Mutex
	until         time.Time
	users, groups map[uint32]string
}

func (c *nameCache) user(id uint32) string {
	return c.name(&c.users, id, func(s string) (string, error) {
		u, err := user.LookupId(s)
		if err != nil {
			return "", err
		}
		return u.Username, nil
	})
}

func (c *nameCache) group(id uint32) string {
	return c.name(&c.groups, id, func(s string) (string, error) {
		g, err := user.LookupGroupId(s)
		if err != nil {
			return "", err
		}
		return g.Name, nil
	})
}

func (c *nameCache) name(m *map[uint32]string, id uint32, look func(string) (string, error)) string {
	c.mu.Lock()
	if now := time.Now(); now.After(c.until) {
		c.until = now.Add(nameTTL)
		c.users, c.groups = map[uint32]string{}, map[uint32]string{}
	}
	name, ok := (*m)[id]
	c.mu.Unlock()
	if ok {
		return name
	}
	name, err := look(strconv.FormatUint(uint64(id), 10))
	if err != nil {
		name = strconv.FormatUint(uint64(id), 10)
	}
	c.mu.Lock()
	(*m)[id] = name
	c.mu.Unlock()
	return name
}
