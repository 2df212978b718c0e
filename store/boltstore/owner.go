package boltstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Two locks protect the file. The one that bbolt takes, flock, keeps any other
// program out, but bbolt gives it up when the file is opened again after a
// failed commit. So a second one, on an open file description of our own, is
// held from Open to Close: in between, no other driver can start on sequences
// in whose effects this process may still be.
//
// Who holds the lock is told by a small file beside the store. It is only
// believed while the lock is taken, so it cannot outlive its writer.

// ownership is the lock that is held from Open to Close.
type ownership struct {
	file *os.File
	note string
}

// ownerNote is the content of the file that names the owner.
type ownerNote struct {
	PID   int       `json:"pid"`
	Host  string    `json:"host"`
	Since time.Time `json:"since"`
}

const lockPause = 20 * time.Millisecond

// own takes the lock, waiting up to wait for another owner to go. The error
// names that owner.
func own(path string, wait time.Duration) (*ownership, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(wait)
	for {
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			f.Close()
			return nil, fmt.Errorf("lock the file: %w", err)
		}
		if time.Now().After(until) {
			f.Close()
			return nil, fmt.Errorf("%w by %s", ErrLocked, readOwner(notePath(path)))
		}
		time.Sleep(lockPause)
	}
	// Links to one file lead to one note, since the lock is on the file.
	o := &ownership{file: f, note: notePath(path)}
	o.write()
	return o, nil
}

func notePath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return path + ".owner"
}

// write leaves the note. It is a courtesy to people: without it (a full disk, a
// directory that may not be written) the lock holds all the same.
func (o *ownership) write() {
	host, _ := os.Hostname()
	b, err := json.Marshal(ownerNote{PID: os.Getpid(), Host: host, Since: time.Now().UTC().Truncate(time.Second)})
	if err == nil {
		_ = os.WriteFile(o.note, append(b, '\n'), 0o644)
	}
}

// same reports an error unless f is the file that is owned.
func (o *ownership) same(f *os.File) error {
	mine, err := o.file.Stat()
	if err != nil {
		return err
	}
	now, err := f.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(mine, now) {
		return fmt.Errorf("%w: another file took its name while it was opened; open it again", ErrLocked)
	}
	return nil
}

func (o *ownership) release() {
	if o == nil || o.file == nil {
		return
	}
	_ = os.Remove(o.note)
	_ = o.file.Close()
	o.file = nil
}

// readOwner says who wrote the note, unless that process is certainly gone.
func readOwner(note string) string {
	const unknown = "a process that left no name"
	b, err := os.ReadFile(note)
	if err != nil {
		return unknown
	}
	var n ownerNote
	if json.Unmarshal(b, &n) != nil || n.PID <= 0 {
		return unknown
	}
	host, _ := os.Hostname()
	if n.Host == host && errors.Is(syscall.Kill(n.PID, 0), syscall.ESRCH) {
		return unknown
	}
	return fmt.Sprintf("pid %d on host %s since %s", n.PID, n.Host, n.Since.Format(time.RFC3339))
}

// lockFile takes the lock that bbolt takes too; on the same open file bbolt
// finds it taken by itself. So there is no moment between the verification and
// bbolt's use of the file in which another program could write to it.
func lockFile(ctx context.Context, f *os.File, wait time.Duration) error {
	until := time.Now().Add(wait)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("lock the file: %w", err)
		}
		if time.Now().After(until) {
			return fmt.Errorf("%w by a program other than a driver (a database tool?)", ErrLocked)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lockPause):
		}
	}
}
