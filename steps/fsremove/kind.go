package fsremove

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

// Name is the kind's name, Version the newest version of its parameters and
// evidence.
const (
	Name    = commitstep.CleanupKind
	Version = 1
)

// MaxRecorded is the most files and directories that one cleanup may record.
// They are kept in one record of the store. The plan's own sources are not
// among them.
const MaxRecorded = 10_000

// LeftoversDelete is the value of CleanupParams.Leftovers that removes what
// else lay in the staging directory when the plan was made.
const LeftoversDelete = "delete"

// Kind is the step's behaviour on the given file systems, one per resource. A
// plan asks for it with commitstep.Plan.Cleanup.
func Kind(files ...filesys.FS) commitstep.Kind {
	byResource := make(map[string]filesys.FS, len(files))
	for _, f := range files {
		byResource[f.Resource()] = f
	}
	return commitstep.Kind{Name: Name, Version: Version, Class: commitstep.DataStep, New: func(s commitstep.Step) (commitstep.CommitStep, error) {
		b, err := build(s, byResource)
		if err != nil {
			return nil, err
		}
		return b, nil
	}}
}

// evidence is what lay below the path when the plan was made, without the
// plan's own sources. Names are relative to the path.
type evidence struct {
	// Top is the id of the directory at the path itself. Moved stands for it
	// when the plan moves that directory away as a whole.
	Top   *filesys.ID `json:"top,omitempty"`
	Moved bool        `json:"moved,omitempty"`
	Dirs  []entry     `json:"dirs,omitempty"` // each before what is inside it
	Files []entry     `json:"files,omitempty"`
}

type entry struct {
	Name string `json:"name"`
	filesys.ID
	Size  int64     `json:"size,omitempty"`
	MTime time.Time `json:"mtime,omitzero"`
	Other bool      `json:"other,omitempty"` // a link or special file
}

// step is one cleanup.
type step struct {
	where    string
	fs       filesys.FS
	params   commitstep.CleanupParams
	top      commitstep.Address // resolved only if the parameters are
	evidence *evidence          // nil while it is planned
	keep     []commitstep.Address
	report   string

	recordedIDs map[filesys.ID]bool // made when first needed
}

var (
	_ commitstep.CommitStep = (*step)(nil)
	_ commitstep.Resolver   = (*step)(nil)
	_ commitstep.Preparer   = (*step)(nil)
	_ commitstep.Cleaner    = (*step)(nil)

	_ commitstep.SharedCleaner = (*step)(nil)
)

func build(s commitstep.Step, files map[string]filesys.FS) (*step, error) {
	b := &step{where: commitstep.Where(s.Stage, s.Index, s.Kind)}
	if err := commitstep.DecodeParams(s, &b.params); err != nil {
		return nil, err
	}
	var err error
	if b.top, err = commitstep.ParseAddress(b.params.Path, "/"); err != nil {
		return nil, b.wrap(err)
	}
	if l := b.params.Leftovers; l != "" && l != LeftoversDelete {
		return nil, &commitstep.PlanError{Where: b.where, Problem: fmt.Sprintf("says leftovers: %q", l), Hint: "leave it out, or say leftovers: " + LeftoversDelete}
	}
	if b.fs = files[b.top.Resource]; b.fs == nil {
		return nil, fmt.Errorf("%w: %w", commitstep.ErrUnsupported, &filesys.NotConfiguredError{Resource: b.top.Resource})
	}
	if len(s.Evidence) > 0 && string(s.Evidence) != "null" {
		var e evidence
		if err := json.Unmarshal(s.Evidence, &e); err != nil {
			return nil, fmt.Errorf("%s: evidence: %w: %w", b.where, commitstep.ErrDamaged, err)
		}
		if e.Moved == (e.Top != nil) || e.Moved && len(e.Dirs)+len(e.Files) > 0 {
			return nil, fmt.Errorf("%s: evidence: %w: it does not say what the path was", b.where, commitstep.ErrDamaged)
		}
		for _, list := range [][]entry{e.Dirs, e.Files} {
			for _, x := range list {
				if !relative(x.Name) {
					return nil, fmt.Errorf("%s: evidence: %w: %q is no name below the path", b.where, commitstep.ErrDamaged, x.Name)
				}
			}
		}
		b.evidence = &e
	}
	return b, nil
}

// relative holds that a recorded name cannot lead out of the path.
func relative(name string) bool {
	return name != "" && name != "." && path.Clean("/"+name) == "/"+name
}

func (b *step) wrap(err error) error {
	var p *commitstep.PlanError
	if errors.As(err, &p) {
		return &commitstep.PlanError{Where: b.where, Problem: fmt.Sprintf("has a wrong path: %s %s", p.Where, p.Problem), Hint: p.Hint, Err: p.Err}
	}
	return &commitstep.PlanError{Where: b.where, Problem: "has a wrong path", Err: err}
}

// Summary names the path.
func (b *step) Summary() string {
	text := b.top.String()
	if b.top.Resource == commitstep.LocalResource {
		text = b.top.Path
	}
	// Quoted where it could be taken for another path.
	for _, r := range text {
		if !strconv.IsPrint(r) {
			return "remove " + strconv.Quote(text)
		}
	}
	return "remove " + text
}

// Resolve makes the path absolute.
func (b *step) Resolve(p *commitstep.Preparation) error {
	var err error
	if b.top, err = b.fs.Resolve(b.params.Path, p.BaseDir); err != nil {
		return b.wrap(err)
	}
	b.params.Path = b.top.String()
	return p.Set(b.params, nil)
}

// at is the address of a recorded name.
func (b *step) at(name string) commitstep.Address {
	return commitstep.Address{Resource: b.top.Resource, Path: path.Join(b.top.Path, name)}
}

// file and dir are what FS.Remove and FS.RemoveDir are to find.
func (b *step) file(e entry) filesys.Info {
	return filesys.Info{Path: b.at(e.Name), ID: e.ID, Size: e.Size, MTime: e.MTime, Other: e.Other}
}

func (b *step) dir(e entry) filesys.Info {
	return filesys.Info{Path: b.at(e.Name), ID: e.ID, Dir: true}
}

// dirs are all recorded directories, the path itself first.
func (b *step) dirs() []filesys.Info {
	var out []filesys.Info
	if b.evidence.Top != nil {
		out = append(out, filesys.Info{Path: b.top, ID: *b.evidence.Top, Dir: true})
	}
	for _, d := range b.evidence.Dirs {
		out = append(out, b.dir(d))
	}
	return out
}
