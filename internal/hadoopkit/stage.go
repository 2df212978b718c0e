package hadoopkit

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"testing"
	"time"

	"github.com/colinmarc/hdfs/v2"
	"github.com/google/uuid"
)

// Client is a client of its own, as user: tests stage, read and delete files
// with it behind the back of what they test.
func (c *Cluster) Client(t testing.TB, user string) *hdfs.Client {
	t.Helper()
	w, err := hdfs.NewClient(hdfs.ClientOptions{Addresses: c.RPCs(), User: user})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// TempDir makes an empty directory that is removed with the test.
func TempDir(t testing.TB, w *hdfs.Client) string {
	t.Helper()
	dir := "/test-" + uuid.NewString()
	if err := w.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A client whose name node was killed finds out by a failed call, and gives
		// that error for five seconds before it connects again.
		err := w.RemoveAll(dir)
		for end := time.Now().Add(30 * time.Second); err != nil && !errors.Is(err, fs.ErrNotExist); err = w.RemoveAll(dir) {
			if time.Now().After(end) {
				t.Error(err)
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
	})
	return dir
}

// Put makes a file and its parents, or replaces the content of the one that is
// there, which keeps its id.
func Put(w *hdfs.Client, p, content string) error {
	f, err := w.Create(p)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := w.MkdirAll(path.Dir(p), 0o755); err != nil {
			return err
		}
		f, err = w.Create(p)
	case errors.Is(err, fs.ErrExist):
		// At a block's end it is done at once, and 0 is one.
		if ok, err := w.Truncate(p, 0); err != nil || !ok {
			return fmt.Errorf("truncate %s: %v %w", p, ok, err)
		}
		f, err = w.Append(p)
	}
	if err != nil {
		return err
	}
	if content != "" {
		if _, err := f.Write([]byte(content)); err != nil {
			return err
		}
	}
	return Finish(f)
}

// Finish closes a file that was written. The name node may not have heard of
// the last block yet; until it has, the file is still being written.
func Finish(f *hdfs.FileWriter) error {
	err := f.Close()
	for ; hdfs.IsErrReplicating(err); err = f.Close() {
		time.Sleep(2 * time.Millisecond)
	}
	return err
}

// FileID of what is at a path; 0 when nothing is.
func FileID(w *hdfs.Client, p string) uint64 {
	fi, err := w.Stat(p)
	if err != nil {
		return 0
	}
	return fi.Sys().(*hdfs.FileStatus).GetFileId()
}
