package dfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

// RemoteError is a "no" of the name node itself: the call was received and had
// no effect.
type RemoteError struct {
	// Op is the call, Path the path it was about.
	Op, Path string
	// Exception is the server's exception class, as it sent it.
	Exception string
	// Message is the first line of what the server said; "" where the transport
	// loses it.
	Message string
	// Server is the name node's address.
	Server string
}

func (e *RemoteError) Error() string {
	s := e.Op + " " + e.Path + ": " + e.class()
	if e.Message != "" {
		s += ": " + e.Message
	}
	if e.Server != "" {
		s += " (name node " + e.Server + ")"
	}
	return s
}

// class is the exception without its package.
func (e *RemoteError) class() string {
	c := e.Exception[strings.LastIndexByte(e.Exception, '.')+1:]
	return c[strings.LastIndexByte(c, '$')+1:]
}

// Is maps the server's classes to the errors of package filesys and io/fs.
func (e *RemoteError) Is(target error) bool {
	switch target {
	case fs.ErrNotExist:
		return e.class() == "FileNotFoundException"
	case fs.ErrExist:
		// A file onto a directory, or the reverse, has no class of its own.
		return e.class() == "FileAlreadyExistsException" || strings.Contains(e.Message, "must both be directories") ||
			strings.Contains(e.Message, "rename destination directory is not empty")
	case fs.ErrPermission:
		return e.class() == "AccessControlException"
	case filesys.ErrNotDirectory:
		return e.class() == "ParentNotDirectoryException" || strings.Contains(e.Message, "is not a directory)")
	case filesys.ErrNotEmpty:
		return e.class() == "PathIsNotEmptyDirectoryException"
	case filesys.ErrQuota:
		return strings.HasSuffix(e.class(), "QuotaExceededException") || e.class() == "QuotaByStorageTypeExceededException"
	case filesys.ErrOtherFileSystem:
		return strings.Contains(e.Message, "encryption zone")
	}
	return false
}

// NotServing are answers of a name node that looked at nothing: it is no
// longer, or not yet, the one that serves.
func (e *RemoteError) NotServing() bool {
	switch e.class() {
	case "StandbyException", "RetriableException", "ObserverRetryOnActiveException":
		return true
	case "SafeModeException":
		return true
	}
	return false
}

// safeMode: another name node would not help.
func (e *RemoteError) safeMode() bool {
	return e.class() == "SafeModeException" || strings.Contains(e.Message, "in safe mode")
}

// permanent are refusals that no repetition changes, only a person.
func (e *RemoteError) permanent() bool {
	switch e.class() {
	case "SnapshotException", "SnapshotAccessControlException", "NestedSnapshottableDirectoryException",
		"InvalidPathException", "PathComponentTooLongException", "MaxDirectoryItemsExceededException", "FSLimitException",
		"HadoopIllegalArgumentException", "IllegalArgumentException", "UnresolvedPathException":
		return true
	}
	return strings.Contains(e.Message, "Pathname too long") || e.Is(filesys.ErrQuota) || e.Is(filesys.ErrOtherFileSystem) || e.Is(filesys.ErrNotDirectory)
}

// notExecuted marks an error: the call reached nobody who could act on it.
type notExecuted struct{ err error }

func (e *notExecuted) Error() string { return e.err.Error() }
func (e *notExecuted) Unwrap() error { return e.err }

// NotExecuted marks err: no name node acted on the call, so it may be sent
// again, to this one or to another.
func NotExecuted(err error) error {
	if err == nil {
		return nil
	}
	return &notExecuted{err}
}

// lost marks an error: the call went out and no answer came.
type lost struct{ err error }

func (e *lost) Error() string { return e.err.Error() }
func (e *lost) Unwrap() error { return e.err }

// Lost marks err: the call was sent, and whether it was executed is unknown.
func Lost(err error) error {
	if err == nil {
		return nil
	}
	return &lost{err}
}

// wasNotExecuted reports whether a call may simply be made again.
func wasNotExecuted(err error) bool {
	switch markOf(err).(type) {
	case *notExecuted:
		return true
	case *lost:
		return false
	}
	var r *RemoteError
	return errors.As(err, &r) && r.NotServing()
}

func wasLost(err error) bool {
	_, ok := markOf(err).(*lost)
	return ok
}

// markOf is the outermost mark in err, nil if there is none: a question whose answer
// was lost may be why a call was not executed. Of several at one depth a lost
// one counts.
func markOf(err error) (mark error) {
	switch e := err.(type) {
	case *notExecuted, *lost:
		return e
	case interface{ Unwrap() error }:
		return markOf(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			m := markOf(one)
			if _, ok := m.(*lost); ok || mark == nil {
				mark = m
			}
		}
	}
	return mark
}

// classify says what is known after a call that changes something failed. An
// answer of the name node is a refusal of this call only: an earlier one whose
// answer was lost may have won.
func classify(err error) error {
	if err == nil || commitstep.ClassOf(err) != commitstep.ClassUnknown {
		return err
	}
	if wasLost(err) {
		return err
	}
	if wasNotExecuted(err) {
		return commitstep.NotSent(err)
	}
	var r *RemoteError
	if errors.As(err, &r) {
		if r.permanent() {
			return commitstep.Permanent(err)
		}
		return commitstep.Refused(err)
	}
	for _, s := range []error{fs.ErrNotExist, fs.ErrExist, fs.ErrPermission, fs.ErrInvalid, filesys.ErrEscapes, filesys.ErrNotDirectory, filesys.ErrChanged, filesys.ErrNotEmpty, filesys.ErrNoClobberUnsupported} {
		if errors.Is(err, s) {
			return commitstep.Refused(err)
		}
	}
	return err
}

// UnavailableError says that no name node served within the time to wait. The
// call had no effect.
type UnavailableError struct {
	// Resource is the file system's name; Tried is what each name node said
	// last.
	Resource string
	Tried    []error
}

func (e *UnavailableError) Error() string {
	parts := make([]string, len(e.Tried))
	for i, t := range e.Tried {
		parts[i] = t.Error()
	}
	return fmt.Sprintf("no name node of %s serves: %s", e.Resource, strings.Join(parts, "; "))
}

// Is makes it match [commitstep.ErrUnavailable].
func (e *UnavailableError) Is(target error) bool { return target == commitstep.ErrUnavailable }

func (e *UnavailableError) Unwrap() []error { return e.Tried }

// ended wraps a context's end before anything was sent.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return NotExecuted(err)
	}
	return nil
}
