package powercut

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Node is one file or directory of a tree.
type Node struct {
	Dir   bool
	Data  []byte // of a file
	Mode  fs.FileMode
	UID   int
	GID   int
	MTime time.Time
	// Inode is the same for all names of one file, and for the same file in all
	// states of a recording.
	Inode int
	// Initial is the path that it had when the recording began, "" if it was
	// made later.
	Initial string
}

// Tree maps paths, absolute and clean, to what is there. The root is part of
// it.
type Tree map[string]Node

// Scan reads the tree at root. Links and special files are refused, since no
// recording could say what became of them.
func Scan(root string) (Tree, error) {
	t := Tree{}
	inodes := map[uint64]int{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if !info.IsDir() && !info.Mode().IsRegular() {
			return fmt.Errorf("%s is neither a file nor a directory", p)
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return fmt.Errorf("%s: no inode number on this system", p)
		}
		id, known := inodes[st.Ino]
		if !known {
			id = len(inodes)
			inodes[st.Ino] = id
		}
		n := Node{Dir: info.IsDir(), Mode: info.Mode().Perm(), UID: int(st.Uid), GID: int(st.Gid), MTime: info.ModTime(), Inode: id, Initial: p}
		if !n.Dir {
			if n.Data, err = os.ReadFile(p); err != nil {
				return err
			}
		}
		t[p] = n
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("powercut: scan %s: %w", root, err)
	}
	return t, nil
}

// paths of the tree, parents first.
func (t Tree) paths() []string {
	var out []string
	for p := range t {
		out = append(out, p)
	}
	slices.Sort(out)
	return out
}

// Below lists the paths under dir, sorted, without dir itself.
func (t Tree) Below(dir string) []string {
	var out []string
	for _, p := range t.paths() {
		if strings.HasPrefix(p, dir+"/") {
			out = append(out, p)
		}
	}
	return out
}

// Sum tells trees apart: equal sums are equal trees.
func (t Tree) Sum() [32]byte {
	h := sha256.New()
	num := func(n int64) {
		var b [8]byte
		binary.BigEndian.PutUint64(b[:], uint64(n))
		h.Write(b[:])
	}
	for _, p := range t.paths() {
		n := t[p]
		num(int64(len(p)))
		h.Write([]byte(p))
		num(int64(n.Mode) | int64(n.UID)<<16 | int64(n.GID)<<40)
		num(int64(n.Inode))
		if !n.Dir {
			num(int64(len(n.Data)))
			h.Write(n.Data)
		}
	}
	return [32]byte(h.Sum(nil))
}

// WriteTo makes root hold exactly this tree; whatever was below root is
// removed. Paths of the tree outside root are ignored. Names of one file
// become hard links. Inode numbers are new ones, which no program can choose.
func (t Tree) WriteTo(root string) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return fmt.Errorf("powercut: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(root, e.Name())); err != nil {
			return fmt.Errorf("powercut: %w", err)
		}
	}
	first := map[int]string{}
	for _, p := range t.paths() {
		if !strings.HasPrefix(p, root+"/") {
			continue
		}
		if err := t.write(p, first); err != nil {
			return fmt.Errorf("powercut: %w", err)
		}
	}
	return nil
}

func (t Tree) write(p string, first map[int]string) error {
	n := t[p]
	if n.Dir {
		if err := os.Mkdir(p, 0o755); err != nil {
			return err
		}
	} else if old, ok := first[n.Inode]; ok {
		return os.Link(old, p)
	} else {
		first[n.Inode] = p
		if err := os.WriteFile(p, n.Data, 0o644); err != nil {
			return err
		}
	}
	if err := os.Lchown(p, n.UID, n.GID); err != nil {
		return err
	}
	if err := os.Chmod(p, n.Mode); err != nil {
		return err
	}
	if n.Dir || n.MTime.IsZero() {
		return nil
	}
	return os.Chtimes(p, n.MTime, n.MTime)
}
