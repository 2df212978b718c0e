package watermark

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// FileTarget keeps every watermark in a file of its own in one directory, where
// other programs may read it. See docs/formats.md for the layout.
//
// A value is replaced by writing a temporary file, syncing it, renaming it and
// syncing the directories, under an exclusive lock (flock) on a lock file next
// to it. Readers take no lock: they see the old value or the new one. On a
// network file system that is only as good as its flock.
//
// All methods are safe for concurrent use by goroutines and processes.
type FileTarget struct {
	name  string
	dir   string
	id    uuid.UUID
	now   func() time.Time
	do    func(op string, run func() error) error
	gates gates
}

var _ Target = (*FileTarget)(nil)

// FilesOption changes how [Files] opens a directory.
type FilesOption func(*filesOptions)

type filesOptions struct {
	create bool
	now    func() time.Time
	do     func(op string, run func() error) error
}

// Create makes the directory, if it is missing or empty, one that holds
// watermarks. Use it at deployment. Without it a missing directory is an error,
// so that an unmounted disk is never taken for sources that were never read.
func Create() FilesOption { return func(o *filesOptions) { o.create = true } }

// Clock sets the time source of the stored times; the default is time.Now.
func Clock(now func() time.Time) FilesOption { return func(o *filesOptions) { o.now = now } }

// The marker makes a directory one that holds watermarks. No encoded name holds
// an underscore, so none can collide with it.
const (
	markerName = "_commitstep_watermarks"
	markerTemp = markerName + ".tmp"
	markerKey  = "watermark directory"
)

const (
	valueSuffix = ".watermark"
	lockSuffix  = ".lock"
	tempSuffix  = ".tmp"
)

// maxValueBytes bounds what is read: above every value that can be written.
const maxValueBytes = 1 << 20

type marker struct {
	ID      uuid.UUID `json:"id"`
	Created time.Time `json:"created"`
}

// Files opens a directory of watermarks under the resource name that plans use
// ([In]). It never makes one unless [Create] is given; a directory that is
// missing, empty or of another kind is an error that says so.
func Files(name, dir string, opts ...FilesOption) (*FileTarget, error) {
	o := filesOptions{now: time.Now, do: func(_ string, run func() error) error { return run() }}
	for _, opt := range opts {
		opt(&o)
	}
	if err := commitstep.CheckName("watermark target", name); err != nil {
		return nil, err
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("watermark directory %q: %w", dir, err)
	}
	t := &FileTarget{name: name, dir: abs, now: o.now, do: o.do}
	if o.create {
		if err := t.create(); err != nil {
			return nil, fmt.Errorf("watermark directory %s: create: %w", abs, err)
		}
	}
	root, err := os.OpenRoot(abs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("watermark directory %s: %w; mount or name the right one, or make it with watermark.Create at deployment", abs, err)
	}
	if err != nil {
		return nil, fmt.Errorf("watermark directory %s: %w", abs, err)
	}
	defer root.Close()
	m, err := readMarker(root)
	if err != nil {
		return nil, fmt.Errorf("watermark directory %s: %w", abs, err)
	}
	t.id = m.ID
	return t, nil
}

// Name is the resource name that plans use.
func (t *FileTarget) Name() string { return t.name }

// Dir is the absolute path of the directory.
func (t *FileTarget) Dir() string { return t.dir }

func readMarker(root *os.Root) (marker, error) {
	var m marker
	b, err := root.ReadFile(markerName)
	if errors.Is(err, fs.ErrNotExist) {
		return m, fmt.Errorf("it has no %s, so it was never made to hold watermarks or its disk is not mounted; nothing is read as none (at deployment use watermark.Create)", markerName)
	}
	if err != nil {
		return m, err
	}
	payload, err := commitstep.Open(commitstep.RecordMeta, []byte(markerKey), b)
	if err == nil {
		if err = json.Unmarshal(payload, &m); err != nil || m.ID == uuid.Nil {
			err = fmt.Errorf("%w: its content is not understood", commitstep.ErrDamaged)
		}
	}
	if err != nil {
		return m, fmt.Errorf("%s cannot be read: %w; restore it from a backup of this directory", markerName, err)
	}
	return m, nil
}

// open gives the directory for one operation, after a look that it is still the
// one that was opened.
func (t *FileTarget) open() (*os.Root, error) {
	var root *os.Root
	err := t.do("open directory", func() (err error) {
		root, err = os.OpenRoot(t.dir)
		return err
	})
	if err == nil {
		var m marker
		if m, err = readMarker(root); err == nil && m.ID != t.id {
			err = fmt.Errorf("another watermark directory is at this path now (id %s, opened was %s); is the right disk mounted?", m.ID, t.id)
		}
	}
	if err != nil {
		if root != nil {
			_ = root.Close()
		}
		return nil, fmt.Errorf("watermark directory %s: %w", t.dir, err)
	}
	return root, nil
}

// fileOf is the path of a watermark's value below the directory. The job's last
// component never ends in "+" and all others do, so no two keys share a path.
func fileOf(k commitstep.WatermarkKey) string {
	return commitstep.EncodeName(k.Job) + "/" + commitstep.EncodeName(k.Source) + valueSuffix
}

// base is fileOf without its suffix, for the lock and temporary files.
func baseOf(k commitstep.WatermarkKey) string { return strings.TrimSuffix(fileOf(k), valueSuffix) }

func checkKey(k commitstep.WatermarkKey) error {
	if err := commitstep.CheckName("job", k.Job); err != nil {
		return err
	}
	return commitstep.CheckName("watermark source", k.Source)
}

// Watermark reads one value. An error wrapping commitstep.ErrNotFound means
// that none was ever set; a file that is empty or damaged is ErrDamaged, a newer
// one ErrNewerFormat, and everything else could not be read.
func (t *FileTarget) Watermark(ctx context.Context, k commitstep.WatermarkKey) (commitstep.WatermarkValue, error) {
	var none commitstep.WatermarkValue
	if err := checkKey(k); err != nil {
		return none, err
	}
	if err := ctx.Err(); err != nil {
		return none, err
	}
	root, err := t.open()
	if err != nil {
		return none, err
	}
	defer root.Close()
	return t.read(root, k)
}

// Read is Watermark with none instead of ErrNotFound, for a job that asks where
// to begin: a source that was never read has the watermark none.
func (t *FileTarget) Read(ctx context.Context, k commitstep.WatermarkKey) (commitstep.Watermark, error) {
	v, err := t.Watermark(ctx, k)
	if errors.Is(err, commitstep.ErrNotFound) {
		return commitstep.None(), nil
	}
	return v.Watermark, err
}

func (t *FileTarget) read(root *os.Root, k commitstep.WatermarkKey) (commitstep.WatermarkValue, error) {
	var v commitstep.WatermarkValue
	file := fileOf(k)
	full := filepath.Join(t.dir, file)
	var b []byte
	err := t.do("read value", func() (err error) { b, err = readRegular(root, file); return err })
	if errors.Is(err, fs.ErrNotExist) {
		// A dangling link is not absence.
		if _, lerr := root.Lstat(file); lerr == nil {
			return v, fmt.Errorf("watermark file %s: %w: it is a link to nothing", full, commitstep.ErrDamaged)
		} else if !errors.Is(lerr, fs.ErrNotExist) {
			return v, fmt.Errorf("watermark file %s: %w", full, lerr)
		}
		return v, fmt.Errorf("watermark %q of job %q in %s: %w", k.Source, k.Job, t.dir, commitstep.ErrNotFound)
	}
	if err != nil {
		return v, fmt.Errorf("watermark file %s: %w", full, err)
	}
	v, err = decodeValue(k, b)
	if err != nil {
		return v, fmt.Errorf("watermark file %s: %w; restore it, or look where the published data ends and set it by hand", full, err)
	}
	return v, nil
}

func decodeValue(k commitstep.WatermarkKey, b []byte) (commitstep.WatermarkValue, error) {
	var v commitstep.WatermarkValue
	payload, err := commitstep.Open(commitstep.RecordWatermark, []byte(k.Lock()), b)
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(payload, &v); err != nil {
		return commitstep.WatermarkValue{}, fmt.Errorf("%w: %w", commitstep.ErrDamaged, err)
	}
	if v.WatermarkKey != k || v.Watermark.IsNone() || v.Token == uuid.Nil {
		return commitstep.WatermarkValue{}, fmt.Errorf("%w: it holds watermark %q of job %q at %s, token %s", commitstep.ErrDamaged, v.Source, v.Job, v.Watermark, v.Token)
	}
	return v, nil
}

// readRegular reads a small regular file. It does not wait for the other end of
// a pipe that somebody put there.
func readRegular(root *os.Root, file string) ([]byte, error) {
	f, err := root.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: it is no regular file (%s)", commitstep.ErrDamaged, info.Mode())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxValueBytes+1))
	if err == nil && len(b) > maxValueBytes {
		err = fmt.Errorf("%w: it is larger than %d bytes", commitstep.ErrDamaged, maxValueBytes)
	}
	return b, err
}

// List yields every watermark in the directory, in no order. A file that cannot
// be read or does not belong there is yielded as an error, and the rest follows;
// a directory that cannot be read ends the range with its error.
func (t *FileTarget) List(ctx context.Context) iter.Seq2[commitstep.WatermarkValue, error] {
	return func(yield func(commitstep.WatermarkValue, error) bool) {
		root, err := t.open()
		if err != nil {
			yield(commitstep.WatermarkValue{}, err)
			return
		}
		defer root.Close()
		errStop := errors.New("stop")
		err = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return err
			}
			if d.IsDir() || p == markerName || p == markerTemp || strings.HasSuffix(p, lockSuffix) || strings.HasSuffix(p, tempSuffix) {
				return nil
			}
			var v commitstep.WatermarkValue
			k, ok := keyOf(p)
			if !ok {
				err = fmt.Errorf("watermark directory %s: %q is no watermark file", t.dir, p)
			} else if v, err = t.read(root, k); errors.Is(err, commitstep.ErrNotFound) {
				return nil // removed while we walked
			}
			if !yield(v, err) {
				return errStop
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(commitstep.WatermarkValue{}, fmt.Errorf("watermark directory %s: %w", t.dir, err))
		}
	}
}

// keyOf is the inverse of fileOf.
func keyOf(p string) (commitstep.WatermarkKey, bool) {
	var k commitstep.WatermarkKey
	p, ok := strings.CutSuffix(p, valueSuffix)
	if !ok {
		return k, false
	}
	parts := strings.Split(p, "/")
	n := 0
	for n < len(parts) && strings.HasSuffix(parts[n], "+") {
		n++
	}
	if n+1 >= len(parts) {
		return k, false
	}
	var err error
	if k.Job, err = commitstep.DecodeName(path.Join(parts[:n+1]...)); err != nil {
		return k, false
	}
	if k.Source, err = commitstep.DecodeName(path.Join(parts[n+1:]...)); err != nil {
		return k, false
	}
	return k, true
}
