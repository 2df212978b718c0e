package dfs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

// Files is a file system on a transport. Safe for concurrent use.
type Files struct {
	resource  string
	root      string
	user      string
	quotaDirs []string
	t         Transport
}

// Config of a file system on a transport.
type Config struct {
	// Resource is what its addresses start with. None leaves Root ("" is all).
	Resource, Root string
	// User is the name that the name node sees, "" where it is not known here.
	User string
	// QuotaDirs are directories whose quotas are looked at when a move is
	// planned.
	QuotaDirs []string
}

// New makes a file system on a transport.
func New(c Config, t Transport) (*Files, error) {
	if c.Root == "" {
		c.Root = "/"
	}
	if c.Root[0] != '/' || path.Clean(c.Root) != c.Root {
		return nil, fmt.Errorf("%s: the root %q is not an absolute path without dots", c.Resource, c.Root)
	}
	for _, d := range c.QuotaDirs {
		if d == "" || d[0] != '/' || path.Clean(d) != d {
			return nil, fmt.Errorf("%s: the quota directory %q is not an absolute path without dots", c.Resource, d)
		}
	}
	return &Files{resource: c.Resource, root: c.Root, user: c.User, quotaDirs: c.QuotaDirs, t: t}, nil
}

// Resource is the first part of all addresses.
func (f *Files) Resource() string { return f.resource }

// Root is the address of the root.
func (f *Files) Root() commitstep.Address {
	return commitstep.Address{Resource: f.resource, Path: f.root}
}

// Resolve implements filesys.FS.
func (f *Files) Resolve(text, base string) (commitstep.Address, error) {
	return Resolve(f.resource, f.root, text, base)
}

func (f *Files) info(ns string, a commitstep.Address, s Status) filesys.Info {
	i := filesys.Info{
		Path:  a,
		ID:    filesys.ID{Text: ns + "/" + strconv.FormatUint(s.FileID, 10)},
		Dir:   s.Dir,
		Other: s.Symlink,
		Size:  s.Length,
		MTime: time.UnixMilli(s.MTimeMS).UTC(),
		Mode:  fs.FileMode(s.Mode & 0o777),
		Owner: s.Owner,
		Group: s.Group,
	}
	if s.Mode&0o1000 != 0 {
		i.Mode |= fs.ModeSticky
	}
	return i
}

// Stat implements filesys.FS.
func (f *Files) Stat(ctx context.Context, a commitstep.Address) (filesys.Info, error) {
	if err := f.check(a); err != nil {
		return filesys.Info{}, err
	}
	ns, err := f.t.Namespace(ctx)
	if err != nil {
		return filesys.Info{}, fmt.Errorf("stat %s: %w", a, err)
	}
	s, err := f.t.Stat(ctx, a.Path)
	if err != nil {
		return filesys.Info{}, fmt.Errorf("stat %s: %w", a, err)
	}
	return f.info(ns, a, s), nil
}

// List implements filesys.FS.
func (f *Files) List(ctx context.Context, dir commitstep.Address) iter.Seq2[filesys.Info, error] {
	return func(yield func(filesys.Info, error) bool) {
		fail := func(err error) { yield(filesys.Info{}, fmt.Errorf("list %s: %w", dir, err)) }
		if err := f.check(dir); err != nil {
			fail(err)
			return
		}
		ns, err := f.t.Namespace(ctx)
		if err != nil {
			fail(err)
			return
		}
		below := strings.TrimSuffix(dir.Path, "/") + "/"
		for s, err := range f.entries(ctx, dir.Path, "") {
			if err != nil {
				fail(err)
				return
			}
			if !yield(f.info(ns, commitstep.Address{Resource: f.resource, Path: below + s.Name}, s), nil) {
				return
			}
		}
	}
}

// entries yields what follows a name, page by page. No connection is held
// between pages.
func (f *Files) entries(ctx context.Context, dir, after string) iter.Seq2[Status, error] {
	return func(yield func(Status, error) bool) {
		for {
			p, err := f.t.Page(ctx, dir, after)
			if err != nil {
				yield(Status{}, err)
				return
			}
			for _, s := range p.Entries {
				if s.Name == "" {
					yield(Status{}, fmt.Errorf("it is a file: %w", filesys.ErrNotDirectory))
					return
				}
				if !yield(s, nil) {
					return
				}
			}
			if !p.More || len(p.Entries) == 0 {
				return
			}
			after = p.Entries[len(p.Entries)-1].Name
		}
	}
}

// Digest implements filesys.FS. It reads the whole file from the data nodes.
func (f *Files) Digest(ctx context.Context, a commitstep.Address) (string, error) {
	if err := f.check(a); err != nil {
		return "", err
	}
	fail := func(err error) (string, error) { return "", fmt.Errorf("digest %s: %w", a, err) }
	s, err := f.t.Stat(ctx, a.Path)
	if err != nil {
		return fail(err)
	}
	if s.Dir || s.Symlink {
		return fail(errors.New("not a regular file"))
	}
	r, err := f.t.Open(ctx, a.Path)
	if err != nil {
		return fail(err)
	}
	h := sha256.New()
	n, err := io.Copy(h, r)
	if err := errors.Join(err, r.Close()); err != nil {
		return fail(err)
	}
	if n != s.Length {
		return fail(fmt.Errorf("read %d of %d bytes", n, s.Length))
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// change checks addresses and context before a call that changes something,
// and classifies its error.
func (f *Files) change(ctx context.Context, call func() error, at ...commitstep.Address) error {
	for _, a := range at {
		if err := f.check(a); err != nil {
			return commitstep.Refused(err)
		}
	}
	if err := ctx.Err(); err != nil {
		return commitstep.NotSent(err)
	}
	return classify(call())
}

// MkdirAll implements filesys.FS.
func (f *Files) MkdirAll(ctx context.Context, dir commitstep.Address) error {
	return f.change(ctx, func() error {
		err := f.t.Mkdirs(ctx, dir.Path)
		if errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("%w: %w", filesys.ErrNotDirectory, err)
		}
		if err != nil {
			return fmt.Errorf("make directory %s: %w", dir, err)
		}
		return nil
	}, dir)
}

// Rename implements filesys.FS.
func (f *Files) Rename(ctx context.Context, from, to commitstep.Address) error {
	return f.change(ctx, func() error {
		if err := f.t.Rename(ctx, from.Path, to.Path); err != nil {
			return fmt.Errorf("rename %s to %s: %w", from, to, err)
		}
		return nil
	}, from, to)
}

// DropSecondName does nothing: a file of HDFS has one name.
func (f *Files) DropSecondName(ctx context.Context, from, to commitstep.Address) error {
	return f.change(ctx, func() error { return nil }, from, to)
}

// SetAttributes implements filesys.FS.
func (f *Files) SetAttributes(ctx context.Context, a commitstep.Address, want filesys.Attributes) error {
	mode, err := parseMode(want.Mode)
	if err != nil {
		return commitstep.Permanent(fmt.Errorf("attributes of %s: %w", a, err))
	}
	return f.change(ctx, func() error {
		if want.Owner != "" || want.Group != "" {
			if err := f.t.SetOwner(ctx, a.Path, want.Owner, want.Group); err != nil {
				return fmt.Errorf("set owner of %s: %w", a, err)
			}
		}
		if want.Mode != "" {
			if err := f.t.SetPermission(ctx, a.Path, mode); err != nil {
				return fmt.Errorf("set mode of %s: %w", a, err)
			}
		}
		return nil
	}, a)
}

// HasAttributes implements filesys.FS. Owners and groups are names.
func (f *Files) HasAttributes(info filesys.Info, want filesys.Attributes) (bool, error) {
	mode, err := parseMode(want.Mode)
	if err != nil {
		return false, err
	}
	now := uint16(info.Mode.Perm())
	if info.Mode&fs.ModeSticky != 0 {
		now |= 0o1000
	}
	// The sticky bit of a file means nothing in HDFS and is not kept.
	if !info.Dir {
		now, mode = now&0o777, mode&0o777
	}
	return (want.Mode == "" || now == mode) && (want.Owner == "" || info.Owner == want.Owner) && (want.Group == "" || info.Group == want.Group), nil
}

func parseMode(text string) (uint16, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 8, 16)
	if err != nil || n > 0o1777 {
		return 0, fmt.Errorf("the mode %q is not an octal number up to 1777, the bits that HDFS has", text)
	}
	return uint16(n), nil
}

// SyncFile does nothing: what a writer has closed is as durable as the
// cluster's replication makes it.
func (f *Files) SyncFile(ctx context.Context, _ commitstep.Address) error { return ctx.Err() }

// SyncDir does nothing: the name node answers a change when its edit log is on
// disk.
func (f *Files) SyncDir(ctx context.Context, _ commitstep.Address) error { return ctx.Err() }
