//go:build linux

package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"unicode/utf8"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"golang.org/x/sys/unix"
)

// listChunk bounds the names held at once while a directory is listed.
const listChunk = 1024

// List yields the entries of a directory, in no order; see [filesys.FS]. A name
// that is not UTF-8 is yielded as an error that quotes it (plans and stores are
// text and could not name it again); the range goes on after it. An entry that
// disappears meanwhile is left out.
func (f *Files) List(ctx context.Context, a commitstep.Address) iter.Seq2[filesys.Info, error] {
	return func(yield func(filesys.Info, error) bool) {
		d, err := f.openDir(a)
		if err != nil {
			yield(filesys.Info{}, err)
			return
		}
		defer d.close()
		r, err := openForReading(d, ".")
		if err != nil {
			yield(filesys.Info{}, pathError("list", a.Path, err))
			return
		}
		defer r.Close()
		for {
			if err := ctx.Err(); err != nil {
				yield(filesys.Info{}, err)
				return
			}
			names, err := r.Readdirnames(listChunk)
			for _, name := range names {
				p := f.address(a.Path + "/" + name)
				if a.Path == "/" {
					p.Path = "/" + name
				}
				if !utf8.ValidString(name) {
					if !yield(filesys.Info{Path: p}, fmt.Errorf("list %q: the name %q is not valid UTF-8; rename the file", a.Path, name)) {
						return
					}
					continue
				}
				info, err := f.infoAt(d, name, p)
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if !yield(info, err) {
					return
				}
			}
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(filesys.Info{}, pathError("list", a.Path, err))
				return
			}
		}
	}
}

// Digest is "sha256:" and the hex digits of a regular file's content.
func (f *Files) Digest(ctx context.Context, p commitstep.Address) (string, error) {
	d, name, err := f.openParent(p)
	if err != nil {
		return "", err
	}
	defer d.close()
	r, err := openForReading(d, name)
	if err != nil {
		return "", pathError("read", p.Path, err)
	}
	defer r.Close()
	if st, err := r.Stat(); err != nil {
		return "", err
	} else if !st.Mode().IsRegular() {
		return "", fmt.Errorf("read %q: it is not a regular file", p.Path)
	}
	h := sha256.New()
	buf := make([]byte, 1<<20)
	for {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		n, err := r.Read(buf)
		h.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
		}
		if err != nil {
			return "", err
		}
	}
}

// openForReading opens what the name stands for, never through a link, and
// without waiting for the other end of a pipe.
func openForReading(d dir, name string) (*os.File, error) {
	fd, err := retryInt(func() (int, error) {
		return unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), d.join(name)), nil
}
