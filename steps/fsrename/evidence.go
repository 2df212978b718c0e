package fsrename

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

// evidence tells the staged file or directory from every look-alike.
type evidence struct {
	filesys.ID
	Dir   bool      `json:"dir,omitempty"`
	Size  int64     `json:"size"`
	MTime time.Time `json:"mtime"`
	// Device is kept for people; it changes with every restart of the machine.
	Device string `json:"device,omitempty"`
	// Digest of the content, where there is no stable id.
	Digest string `json:"digest,omitempty"`
	Tree   *tree  `json:"tree,omitempty"`
}

// usable reports whether there is something to compare.
func (e *evidence) usable() bool {
	if e.Dir {
		return e.Tree != nil && e.Tree.Digest != ""
	}
	return !e.ID.IsZero() || e.Digest != ""
}

// tree sums a directory up: its entries in order, by relative name, identity
// and length.
type tree struct {
	Count  int    `json:"count"` // files
	Bytes  int64  `json:"bytes"` // of all files
	Digest string `json:"digest"`
	// Times is Digest with the modification times in it. It is compared at the
	// source only: once published, a time that somebody touches does no harm.
	Times string `json:"times"`
}

// is says how what is at a path relates to what was planned.
type is uint8

const (
	another   is = iota // certainly another file or directory
	same                // the planned one
	altered             // the planned one, with another content
	undecided           // cannot be compared here
)

// compare looks at what info describes. atSource also wants the modification
// time unchanged. The text says what was compared, for people.
func (b *step) compare(ctx context.Context, info filesys.Info, atSource bool) (is, string, error) {
	e := b.evidence
	if info.Dir != e.Dir || info.Other {
		return another, "it is " + describe(info), nil
	}
	switch {
	case e.ID.IsZero():
	case info.ID == e.ID:
		return b.compareSame(ctx, info, atSource)
	case info.ID.SameMethod(e.ID):
		return another, fmt.Sprintf("it is %s with the id %s, planned was %s", describe(info), info.ID.Text, e.ID.Text), nil
	case e.Digest == "" && e.Tree == nil || e.Dir:
		return undecided, fmt.Sprintf("this process sees the id %q where %q was recorded, and the two cannot be compared; run it where file ids are read as they were when it was planned", info.ID.Text, e.ID.Text), nil
	}
	// No identity: the content decides.
	if e.Dir {
		return b.compareSame(ctx, info, atSource)
	}
	if info.Size != e.Size {
		return another, fmt.Sprintf("it has %d bytes, planned were %d", info.Size, e.Size), nil
	}
	d, err := b.fs.Digest(ctx, info.Path)
	if err != nil {
		return undecided, "", err
	}
	if d != e.Digest {
		return another, fmt.Sprintf("it has %d bytes as planned and another content (%s, planned %s)", info.Size, d, e.Digest), nil
	}
	if atSource && !info.MTime.Equal(e.MTime) {
		return altered, fmt.Sprintf("it was modified at %s, planned was %s", info.MTime, e.MTime), nil
	}
	return same, "same length and content", nil
}

// compareSame is for what has the recorded identity, or none to compare.
func (b *step) compareSame(ctx context.Context, info filesys.Info, atSource bool) (is, string, error) {
	e := b.evidence
	if !e.Dir {
		switch {
		case !atSource && info.Size != e.Size && !b.mayLose(info):
			// The id is the proof. What others did to the file since it was
			// published is theirs.
			return same, fmt.Sprintf("same file id; it has %d bytes now and had %d", info.Size, e.Size), nil
		case info.Size != e.Size:
			return altered, fmt.Sprintf("it is the planned file, but has %d bytes now and had %d", info.Size, e.Size), nil
		case atSource && !info.MTime.Equal(e.MTime):
			return altered, fmt.Sprintf("it is the planned file, but was modified at %s, planned was %s", info.MTime, e.MTime), nil
		}
		return same, "same file id and length", nil
	}
	t, err := readTree(ctx, b.fs, info.Path, nil)
	var odd *oddEntryError
	if errors.As(err, &odd) {
		return altered, "its list of files has changed: " + odd.Error(), nil
	}
	if err != nil {
		return undecided, "", err
	}
	switch {
	case t.Digest != e.Tree.Digest:
		diff := altered
		if e.ID.IsZero() {
			diff = another
		}
		return diff, fmt.Sprintf("its list of files has changed: %d files with %d bytes, planned were %d with %d", t.Count, t.Bytes, e.Tree.Count, e.Tree.Bytes), nil
	case atSource && t.Times != e.Tree.Times:
		return altered, "a file inside was modified after it was planned", nil
	}
	return same, fmt.Sprintf("same directory with the same %d files", t.Count), nil
}

// mayLose reports that a file with fewer bytes than planned may have lost them
// with the power, because what is written there is not durable by itself, and
// not by the hand of somebody.
func (b *step) mayLose(info filesys.Info) bool {
	return info.Size < b.evidence.Size && b.fs.Capabilities().Sync
}

func describe(i filesys.Info) string {
	switch {
	case i.Dir:
		return "a directory"
	case i.Special != "":
		return "a " + i.Special
	case i.Other:
		return "a link or special file"
	}
	return fmt.Sprintf("a file of %d bytes", i.Size)
}

// oddEntryError is something in a directory that is neither file nor directory.
type oddEntryError struct {
	path    commitstep.Address
	special string
}

func (e *oddEntryError) Error() string {
	return fmt.Sprintf("%s is a link or special file", e.path)
}

// readTree sums a directory up. Memory is bounded by the listings on the way
// from the top to the deepest entry. each, if not nil, is called for every
// entry, directories before what is in them, and for the top itself last.
func readTree(ctx context.Context, f filesys.FS, top commitstep.Address, each func(filesys.Info) error) (*tree, error) {
	t := &tree{}
	list, times := sha256.New(), sha256.New()
	var walk func(dir commitstep.Address) error
	walk = func(dir commitstep.Address) error {
		var entries []filesys.Info
		for info, err := range f.List(ctx, dir) {
			if err != nil {
				return err
			}
			entries = append(entries, info)
		}
		slices.SortFunc(entries, func(a, b filesys.Info) int { return strings.Compare(a.Path.Path, b.Path.Path) })
		for _, info := range entries {
			if info.Other {
				return &oddEntryError{info.Path, info.Special}
			}
			name := strings.TrimPrefix(info.Path.Path, top.Path)
			size, mtime, id := info.Size, info.MTime, info.ID.Text
			if info.Dir {
				size, mtime = -1, time.Time{} // differ between file systems
			} else {
				t.Count++
				t.Bytes += size
				if info.ID.IsZero() {
					d, err := f.Digest(ctx, info.Path)
					if err != nil {
						return err
					}
					id = d
				}
			}
			add(list, name, id, size, 0)
			add(times, name, id, size, mtime.UnixNano())
			if each != nil {
				if err := each(info); err != nil {
					return err
				}
			}
			if info.Dir {
				if err := walk(info.Path); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := walk(top); err != nil {
		return nil, err
	}
	t.Digest = "sha256:" + hex.EncodeToString(list.Sum(nil))
	t.Times = "sha256:" + hex.EncodeToString(times.Sum(nil))
	return t, nil
}

// add writes fields with their lengths, so that no two lists run into one.
func add(h hash.Hash, name, id string, size, mtime int64) {
	var b []byte
	for _, s := range []string{name, id} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(s)))
		b = append(b, s...)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(size))
	b = binary.BigEndian.AppendUint64(b, uint64(mtime))
	h.Write(b)
}
