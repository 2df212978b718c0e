package boltstore

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/commitstep/engine/commitstep"
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
	if errors.Is(err, fs.ErrPermission) && next == "" {
		next = "run as a user that may read and write it"
	}
	if next != "" {
		next = "; " + fmt.Sprintf(next, a...)
	}
	return &openError{path: path, err: err, next: next}
}

type openError struct {
	path string
	err  error
	next string
}

func (e *openError) Error() string { return fmt.Sprintf("store %q: %s%s", e.path, e.err, e.next) }
func (e *openError) Unwrap() error { return e.err }

// damaged builds an error that matches commitstep.ErrDamaged.
func damaged(format string, a ...any) error {
	return fmt.Errorf("%w: %s", commitstep.ErrDamaged, fmt.Sprintf(format, a...))
}
