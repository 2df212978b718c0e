package powercut

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Recording is a run below one root: what it changed, what it synced, and the
// notes that it left. It is immutable.
type Recording struct {
	root  string
	nodes []Node // by inode; Data and attributes as before the run
	root0 int    // inode of the root
	base  map[int]map[string]int
	units []unit
	syncs []sync
	marks []mark
}

// unit is one change that a power cut takes or leaves. An entry change adds a
// name, removes one, or, in a rename, does both.
type unit struct {
	enter, exit int
	text        string

	add, del *entry

	ino     int // of data, size and attributes
	data    []byte
	off     int64
	resize  bool
	size    int64
	setMode bool
	mode    fs.FileMode
	uid     int
	gid     int
	attr    bool
}

type entry struct {
	dir  int
	name string
	ino  int
}

func (u *unit) isEntry() bool { return u.add != nil || u.del != nil }

type sync struct {
	enter, exit int
	all         bool // the whole file system
	ino         int
	dataOnly    bool
	path        string
}

type mark struct {
	at   int
	note string
}

// Parse reads the output of a program run under [Strace]. initial is the tree
// below root before it ran. The paths in unsynced are taken as made just
// before, by somebody who synced nothing.
//
// An error means that the recording cannot be used: it is cut short, or it
// holds a call that the model does not know.
func Parse(r io.Reader, root string, initial Tree, unsynced ...string) (*Recording, error) {
	ops, err := readStrace(r, root)
	if err != nil {
		return nil, err
	}
	rec := &Recording{root: root, base: map[int]map[string]int{}}
	live, err := rec.start(initial, unsynced)
	if err != nil {
		return nil, fmt.Errorf("powercut: %w", err)
	}
	for _, o := range ops {
		if err := rec.record(live, o); err != nil {
			return nil, fmt.Errorf("powercut: %s %s: %w", o.kind, o.path, err)
		}
	}
	return rec, nil
}

// view is the tree as the recorded program saw it.
type view struct {
	root string
	ino  int
	dirs map[int]map[string]int
	ends map[int]int64 // length of files that grew at their end
}

func (v *view) find(p string) (int, bool) {
	ino := v.ino
	if p == v.root {
		return ino, true
	}
	for _, name := range strings.Split(strings.TrimPrefix(p, v.root+"/"), "/") {
		next, ok := v.dirs[ino][name]
		if !ok {
			return 0, false
		}
		ino = next
	}
	return ino, true
}

func (v *view) parent(p string) (int, string, error) {
	ino, ok := v.find(path.Dir(p))
	if !ok {
		return 0, "", errors.New("its directory is not in the recording")
	}
	return ino, path.Base(p), nil
}

func (rec *Recording) start(initial Tree, unsynced []string) (*view, error) {
	v := &view{root: rec.root, dirs: map[int]map[string]int{}, ends: map[int]int64{}}
	if !initial[rec.root].Dir {
		return nil, fmt.Errorf("the tree has no root %s", rec.root)
	}
	v.ino = initial[rec.root].Inode
	rec.root0 = v.ino
	fresh := map[string]bool{}
	for _, p := range unsynced {
		fresh[p] = true
	}
	for _, p := range initial.paths() {
		n := initial[p]
		for len(rec.nodes) <= n.Inode {
			rec.nodes = append(rec.nodes, Node{})
		}
		if n.Dir {
			rec.base[n.Inode] = map[string]int{}
			v.dirs[n.Inode] = map[string]int{}
		} else {
			v.ends[n.Inode] = int64(len(n.Data))
		}
		node := n
		if p != rec.root {
			dir, name, err := v.parent(p)
			if err != nil {
				return nil, err
			}
			v.dirs[dir][name] = n.Inode
			if fresh[p] {
				rec.units = append(rec.units, unit{text: "new " + p, add: &entry{dir, name, n.Inode}})
				if !n.Dir && len(n.Data) > 0 {
					rec.units = append(rec.units, unit{text: "write " + p, ino: n.Inode, data: n.Data})
					node.Data = nil
				}
			} else {
				rec.base[dir][name] = n.Inode
			}
		}
		rec.nodes[n.Inode] = node
	}
	return v, nil
}

func (rec *Recording) record(v *view, o op) error {
	u := unit{enter: o.enter, exit: o.exit, text: string(o.kind) + " " + strings.TrimPrefix(o.path, rec.root+"/")}
	newInode := func(n Node) int {
		rec.nodes = append(rec.nodes, n)
		ino := len(rec.nodes) - 1
		rec.nodes[ino].Inode = ino
		return ino
	}
	ino, exists := v.find(o.path)
	need := func() error {
		if !exists {
			return errors.New("it is not in the recording")
		}
		return nil
	}
	switch o.kind {
	case opMark:
		rec.marks = append(rec.marks, mark{o.exit, o.path})
		return nil
	case opFsync, opFdatasync:
		if err := need(); err != nil {
			return err
		}
		rec.syncs = append(rec.syncs, sync{enter: o.enter, exit: o.exit, ino: ino, dataOnly: o.kind == opFdatasync, path: o.path})
		return nil
	case opSyncFS:
		rec.syncs = append(rec.syncs, sync{enter: o.enter, exit: o.exit, all: true, path: o.path})
		return nil
	case opOpen:
		if exists {
			if !o.trunc || v.ends[ino] == 0 {
				return nil
			}
			v.ends[ino] = 0
			u.ino, u.resize = ino, true
			break
		}
		dir, name, err := v.parent(o.path)
		if err != nil {
			return err
		}
		ino = newInode(Node{Mode: fs.FileMode(o.mode) & 0o777})
		v.dirs[dir][name] = ino
		u.add = &entry{dir, name, ino}
	case opMkdir:
		dir, name, err := v.parent(o.path)
		if err != nil {
			return err
		}
		ino = newInode(Node{Dir: true, Mode: fs.FileMode(o.mode) & 0o777})
		v.dirs[dir][name] = ino
		v.dirs[ino] = map[string]int{}
		rec.base[ino] = map[string]int{}
		u.add = &entry{dir, name, ino}
	case opUnlink, opRmdir:
		if err := need(); err != nil {
			return err
		}
		dir, name, err := v.parent(o.path)
		if err != nil {
			return err
		}
		delete(v.dirs[dir], name)
		u.del = &entry{dir, name, ino}
	case opRename, opLink:
		if err := need(); err != nil {
			return err
		}
		u.text += " to " + strings.TrimPrefix(o.to, rec.root+"/")
		dir, name, err := v.parent(o.to)
		if err != nil {
			return err
		}
		if o.kind == opRename {
			from, old, err := v.parent(o.path)
			if err != nil {
				return err
			}
			delete(v.dirs[from], old)
			u.del = &entry{from, old, ino}
		}
		v.dirs[dir][name] = ino
		u.add = &entry{dir, name, ino}
	case opWrite:
		if err := need(); err != nil {
			return err
		}
		u.ino, u.data, u.off = ino, o.data, o.off
		if u.off < 0 {
			u.off = v.ends[ino]
		}
		v.ends[ino] = max(v.ends[ino], u.off+int64(len(u.data)))
		u.text += fmt.Sprintf(" %d bytes at %d", len(u.data), u.off)
	case opTruncate:
		if err := need(); err != nil {
			return err
		}
		u.ino, u.resize, u.size = ino, true, o.size
		v.ends[ino] = o.size
	case opChmod:
		if err := need(); err != nil {
			return err
		}
		u.ino, u.attr, u.setMode, u.mode, u.uid, u.gid = ino, true, true, fs.FileMode(o.mode)&0o777, -1, -1
	case opChown:
		if err := need(); err != nil {
			return err
		}
		u.ino, u.attr, u.uid, u.gid = ino, true, o.uid, o.gid
	}
	rec.units = append(rec.units, u)
	return nil
}

// Without is the recording of a program that forgot some of its syncs: those
// of a path for which drop says so. It is how a test shows that it would
// notice.
func (rec *Recording) Without(drop func(path string, dir bool) bool) *Recording {
	out := *rec
	out.syncs = slices.DeleteFunc(slices.Clone(rec.syncs), func(s sync) bool {
		return !s.all && drop(s.path, rec.nodes[s.ino].Dir)
	})
	return &out
}

// Syncs and Changes count what was recorded; a test asserts that a recording
// is not empty.
func (rec *Recording) Syncs() int { return len(rec.syncs) }

// Changes counts the changes; see Syncs.
func (rec *Recording) Changes() int { return len(rec.units) }
