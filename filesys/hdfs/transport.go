package hdfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"

	"github.com/colinmarc/hdfs/v2"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/internal/dfs"
)

// transport implements dfs.Transport.
type transport struct {
	o    Options
	pool *pool
	over *dfs.Failover
	ns   *dfs.Namespace
	// askWeb asks a web server of a name node for its block pool.
	askWeb func(ctx context.Context, address string) (string, error)
	// opaque is set once a connection's requests could not be read.
	opaque atomic.Bool
}

// call makes one call of the library on the name node that serves, and sorts
// what came of it by what the connection saw.
// changed says that a request that changes something went out.
func (t *transport) call(ctx context.Context, op, path string, x exchange, fn func(*hdfs.Client) error) (changed bool, err error) {
	err = t.over.Do(ctx, !x.mayChange, func(ctx context.Context, address string) error {
		c, err := t.pool.get(ctx, t.pool.slots, address)
		if err != nil {
			return err
		}
		saw := x
		err, sound := c.do(ctx, op, path, &saw, fn)
		changed = saw.changed
		t.pool.put(t.pool.slots, c, sound)
		return err
	})
	return changed, err
}

// do makes one call on one client. sound is false when the client must not be
// used again.
func (c *client) do(ctx context.Context, op, path string, saw *exchange, fn func(*hdfs.Client) error) (err error, sound bool) {
	c.conn.begin(saw)
	stop := context.AfterFunc(ctx, c.conn.abort)
	err = fn(c.Client)
	stop()
	failed := c.conn.end()
	sound = failed == nil
	switch {
	case err == nil:
		return nil, sound
	case errors.Is(failed, errOpaque), errors.Is(failed, errors.ErrUnsupported):
		return fmt.Errorf("%s %s: %w", op, path, failed), false
	case saw.refused:
		return &dfs.RemoteError{Op: op, Path: path, Exception: saw.answer.exception, Message: saw.answer.message, Server: c.address}, sound
	case sound && local(err) != nil:
		return local(err), true
	case !saw.sent || saw.mayChange && !saw.changed:
		err = dfs.NotExecuted(c.because(ctx, op, failed, err))
	default:
		err = dfs.Lost(c.because(ctx, op, failed, err))
	}
	return err, false
}

// local is the error, without the library's path around it, that it gives for
// an answer that is no error of the server: an empty one, or one that does not
// suit the call. Nil for any other.
func local(err error) error {
	for _, e := range []error{fs.ErrNotExist, fs.ErrExist, errNotDir} {
		if errors.Is(err, e) {
			return e
		}
	}
	return nil
}

var errNotDir = fmt.Errorf("it is a file: %w", filesys.ErrNotDirectory)

// because says why there is no answer, in words that help.
func (c *client) because(ctx context.Context, op string, failed, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("name node %s: no answer to %s: %w", c.address, op, ctx.Err())
	case failed != nil && timedOut(failed):
		return fmt.Errorf("name node %s: no answer to %s within %s: %w", c.address, op, c.conn.timeout, os.ErrDeadlineExceeded)
	case failed != nil:
		return fmt.Errorf("name node %s: no answer to %s: %w", c.address, op, failed)
	}
	return fmt.Errorf("name node %s: %s: %w", c.address, op, err)
}

func status(name string, fi os.FileInfo) dfs.Status {
	s := fi.Sys().(*hdfs.FileStatus)
	const encrypted, snapshots = 2, 8 // of the flags
	return dfs.Status{
		Name:      name,
		FileID:    s.GetFileId(),
		Dir:       fi.IsDir(),
		Symlink:   len(s.GetSymlink()) > 0,
		Length:    int64(s.GetLength()),
		MTimeMS:   int64(s.GetModificationTime()),
		Mode:      uint16(s.GetPermission().GetPerm()),
		Owner:     s.GetOwner(),
		Group:     s.GetGroup(),
		Children:  int(s.GetChildrenNum()),
		Encrypted: s.GetFlags()&encrypted != 0 || s.GetFileEncryptionInfo() != nil,
		Snapshots: s.GetFlags()&snapshots != 0,
	}
}

func (t *transport) Stat(ctx context.Context, path string) (s dfs.Status, err error) {
	_, err = t.call(ctx, "stat", path, exchange{}, func(c *hdfs.Client) error {
		fi, err := c.Stat(path)
		if err == nil {
			s = status("", fi)
		}
		return err
	})
	return s, err
}

// pageEntries is as many as a name node gives in one answer by default.
const pageEntries = 1000

// Page reads a part of a directory. The library can only list from the start;
// the connection puts the name to start after into its request.
func (t *transport) Page(ctx context.Context, dir, after string) (p dfs.Page, err error) {
	_, err = t.call(ctx, "list", dir, exchange{after: after, listed: dir}, func(c *hdfs.Client) error {
		p = dfs.Page{Total: -1}
		f, err := c.Open(dir)
		if err != nil {
			return err
		}
		defer f.Close() // a directory has nothing to close
		if !f.Stat().IsDir() {
			return errNotDir
		}
		infos, err := f.Readdir(pageEntries)
		if err == io.EOF { // the end of the listing, not of the connection
			return nil
		} else if err != nil {
			return err
		}
		p.More = len(infos) == pageEntries
		p.Entries = make([]dfs.Status, len(infos))
		for i, fi := range infos {
			// A file is listed as its own only entry, without a name.
			p.Entries[i] = status(string(fi.Sys().(*hdfs.FileStatus).GetPath()), fi)
		}
		return nil
	})
	return p, err
}

func (t *transport) Mkdirs(ctx context.Context, dir string) error {
	// The library looks first, and ignores what the call says.
	made, err := t.call(ctx, "mkdirs", dir, exchange{mayChange: true}, func(c *hdfs.Client) error { return c.MkdirAll(dir, 0o755) })
	if err != nil || !made {
		return err
	}
	s, err := t.Stat(ctx, dir)
	switch {
	case err != nil:
		return fmt.Errorf("after mkdirs: %w", err)
	case !s.Dir:
		return fmt.Errorf("mkdirs %s: %w", dir, filesys.ErrNotDirectory)
	}
	return nil
}

func (t *transport) Rename(ctx context.Context, from, to string) error {
	if !t.opaque.Load() {
		err := t.rename(ctx, from, to, false)
		if !errors.Is(err, errOpaque) {
			return err
		}
		t.opaque.Store(true)
	}
	return t.renameLooking(ctx, from, to)
}

func (t *transport) rename(ctx context.Context, from, to string, anyway bool) error {
	_, err := t.call(ctx, "rename", from, exchange{mayChange: true, unasked: to, anyway: anyway}, func(c *hdfs.Client) error { return c.Rename(from, to) })
	return err
}

// renameLooking is for connections whose flag cannot be cleared: it looks at
// the destination first. A directory replaces none but an empty one; a file
// that comes in between is overwritten, so files need the operator's consent.
func (t *transport) renameLooking(ctx context.Context, from, to string) error {
	src, err := t.Stat(ctx, from)
	if err != nil {
		return err
	}
	if !src.Dir && t.o.NoClobber != BestEffort {
		return fmt.Errorf("rename %s: %w; configure no_clobber: %s to accept that a file is lost that somebody else publishes under the same name at the same moment", from, errOpaque, BestEffort)
	}
	switch _, err := t.Stat(ctx, to); {
	case err == nil:
		return fmt.Errorf("rename %s: destination %s: %w", from, to, fs.ErrExist)
	case !filesys.Missing(err), errors.Is(err, filesys.ErrNotDirectory):
		return err
	}
	if err := t.rename(ctx, from, to, true); err != nil {
		return err
	}
	switch dst, err := t.Stat(ctx, to); {
	case err != nil:
		return dfs.Lost(fmt.Errorf("after the rename of %s: %w", from, err))
	case dst.FileID != src.FileID:
		return dfs.Lost(fmt.Errorf("after the rename of %s something else is at %s: file id %d, not %d", from, to, dst.FileID, src.FileID))
	}
	return nil
}

func (t *transport) Delete(ctx context.Context, path string) error {
	_, err := t.call(ctx, "delete", path, exchange{mayChange: true}, func(c *hdfs.Client) error { return c.Remove(path) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// The library ignores a "false".
	switch _, err := t.Stat(ctx, path); {
	case filesys.Missing(err):
		return nil
	case err != nil:
		return fmt.Errorf("after delete: %w", err)
	}
	return fmt.Errorf("delete %s: the name node says it is done, yet something is there", path)
}

func (t *transport) SetPermission(ctx context.Context, path string, mode uint16) error {
	_, err := t.call(ctx, "set permission", path, exchange{mayChange: true}, func(c *hdfs.Client) error { return c.Chmod(path, os.FileMode(mode)) })
	return err
}

func (t *transport) SetOwner(ctx context.Context, path, owner, group string) error {
	_, err := t.call(ctx, "set owner", path, exchange{mayChange: true}, func(c *hdfs.Client) error { return c.Chown(path, owner, group) })
	return err
}

func (t *transport) Namespace(ctx context.Context) (string, error) { return t.ns.Get(ctx) }
