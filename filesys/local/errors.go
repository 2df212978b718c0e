//go:build linux

package local

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"golang.org/x/sys/unix"
)

func errnoOf(err error) unix.Errno {
	var e unix.Errno
	if errors.As(err, &e) {
		return e
	}
	return 0
}

// pathError adds what was done where, and the sentinel of package filesys that
// belongs to the errno. Errno itself matches fs.ErrNotExist, ErrExist and
// ErrPermission.
func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	switch errnoOf(err) {
	case unix.ENOTDIR:
		err = fmt.Errorf("%w: %w", filesys.ErrNotDirectory, err)
	case unix.EXDEV:
		err = fmt.Errorf("%w: %w", filesys.ErrOtherFileSystem, err)
	case unix.ELOOP:
		err = fmt.Errorf("%w: %w", filesys.ErrEscapes, err)
	case unix.ENAMETOOLONG:
		err = tooLongError{err}
	}
	return &lookError{op, path, err}
}

// lookError is written out only when somebody reads it: every free destination
// is one.
type lookError struct {
	op, path string
	err      error
}

func (e *lookError) Error() string { return fmt.Sprintf("%s %q: %v", e.op, e.path, e.err) }
func (e *lookError) Unwrap() error { return e.err }

// tooLongError is an ENAMETOOLONG: nothing is there, and nothing ever can be. A
// look that only failed would be repeated for ever.
type tooLongError struct{ errno error }

func (e tooLongError) Error() string { return e.errno.Error() }
func (e tooLongError) Unwrap() error { return e.errno }
func (e tooLongError) Is(target error) bool {
	return target == filesys.ErrNameTooLong || target == fs.ErrNotExist
}

// classify says what is known after a call that changes something failed.
//
// A local call that answers with one of the listed numbers was refused before
// it changed anything; on a network file system the same answer can follow a
// repeated request whose first copy won, which is why it is Refused and not
// NotSent, except on a full disk. EIO, ESTALE, ETIMEDOUT, EINTR and all others are left unclassified:
// the change may be in the journal.
func classify(err error) error {
	if err == nil || commitstep.ClassOf(err) != commitstep.ClassUnknown {
		return err
	}
	switch errnoOf(err) {
	case unix.EXDEV, unix.ENAMETOOLONG, unix.EILSEQ:
		return commitstep.Permanent(err)
	case unix.ENOSPC, unix.EDQUOT:
		// A full disk is waited out, like a server that is down: it says nothing
		// about the step, and every dataset on it would use up its attempts within
		// seconds. Verify looks again before the next try in any case.
		return commitstep.NotSent(err)
	case unix.ENOENT, unix.EEXIST, unix.ENOTEMPTY, unix.ENOTDIR, unix.EISDIR,
		unix.EACCES, unix.EPERM, unix.EROFS,
		unix.ELOOP, unix.EBUSY, unix.ETXTBSY, unix.EMLINK, unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP:
		return commitstep.Refused(err)
	}
	for _, s := range []error{filesys.ErrEscapes, filesys.ErrNotDirectory, filesys.ErrChanged, filesys.ErrNotEmpty} {
		if errors.Is(err, s) {
			return commitstep.Refused(err)
		}
	}
	return err
}
