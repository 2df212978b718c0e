package boltstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/commitstep/engine/commitstep"
	"golang.org/x/sys/unix"
)

// Errors of Open and Init. They arrive wrapped with the path and with what to
// do next; compare with errors.Is.
var (
	// ErrAbsent: there is no file at the path.
	ErrAbsent = errors.New("there is no store")
	// ErrEmpty: the file has no bytes. It is never taken for a new store.
	ErrEmpty = errors.New("the file is empty")
	// ErrNotStore: the file was not made by this program.
	ErrNotStore = errors.New("the file is not a commit store")
	// ErrNotFile: the path names a directory or something else that is no
	// regular file.
	ErrNotFile = errors.New("not a regular file")
	// ErrLocked: another process, or another Store of this one, has it open.
	ErrLocked = errors.New("the store is in use")
	// ErrClosed: the Store was closed.
	ErrClosed = errors.New("the store is closed")
)

// fileError says what is wrong with the file at path and what to do next.
func fileError(path string, err error, next string, a ...any) error {
	if next == "" {
		next, a = advice(path, err), nil
	}
	if next != "" {
		next = "; " + fmt.Sprintf(next, a...)
	}
	return &openError{path: path, err: err, next: next}
}

// advice is what to do next about a failed call.
func advice(path string, err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "run as a user that may read and write it"
	case errors.Is(err, unix.EROFS):
		return "make the file system writable, or name a store on another one; a store is locked and written to even when it is only looked at"
	case errors.Is(err, unix.ENAMETOOLONG):
		return "name a shorter path"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return "free space there, or name a store elsewhere"
	case errors.Is(err, unix.ENOTDIR):
		return "a file is where one of its directories must be; name another path"
	case errors.Is(err, fs.ErrNotExist):
		return "make its directory first, or mount what holds it"
	}
	return ""
}

// deadLink reports where the link at path leads, if it leads to nothing.
func deadLink(path string) (target string, ok bool) {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return "", false
	}
	target, err := os.Readlink(path)
	return target, err == nil
}

const deadLinkHint = "it is a link to %q, where nothing is: mount what holds it, correct the link, or remove it"

type openError struct {
	path string
	err  error
	next string
}

func (e *openError) Error() string {
	text := e.err.Error()
	// The path stands at the front already.
	switch at := e.err.(type) {
	case *fs.PathError:
		if filepath.Dir(at.Path) == filepath.Dir(e.path) {
			text = at.Op + ": " + at.Err.Error()
		}
	case *os.LinkError:
		if at.New == e.path {
			text = at.Op + ": " + at.Err.Error()
		}
	}
	return fmt.Sprintf("store %q: %s%s", e.path, text, e.next)
}

func (e *openError) Unwrap() error { return e.err }

// damaged builds an error that matches commitstep.ErrDamaged.
func damaged(format string, a ...any) error {
	return fmt.Errorf("%w: %s", commitstep.ErrDamaged, fmt.Sprintf(format, a...))
}
