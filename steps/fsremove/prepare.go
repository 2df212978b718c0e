package fsremove

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

// shown is how many leftovers a refusal names.
const shown = 5

// Prepare records what lies below the path besides the plan's own sources. It
// runs after all steps of the plan were prepared.
func (b *step) Prepare(ctx context.Context, p *commitstep.Preparation) error {
	if !p.Cleanup {
		return p.Errorf("name the path in the plan's cleanup list", "is a cleanup and cannot stand in a stage")
	}
	if err := b.Resolve(p); err != nil {
		return err
	}
	root, err := b.fs.Resolve(".", "")
	if err != nil {
		return fmt.Errorf("%s: %w", b.where, err)
	}
	if b.top.Contains(root) {
		return p.Errorf("name one run's staging directory", "cleans up %s, the root of the file system", b.top)
	}
	if err := p.Claim(b.top, commitstep.CleanupTree); err != nil {
		return err
	}
	info, err := b.fs.Stat(ctx, b.top)
	switch {
	case filesys.Missing(err):
		return p.Errorf("leave the cleanup out when nothing was staged there", "cleans up %s, which is missing", b.top)
	case errors.Is(err, filesys.ErrEscapes):
		return &commitstep.PlanError{Where: b.where, Problem: fmt.Sprintf("cleans up %s", b.top), Hint: "name the directory without the link", Err: err}
	case err != nil:
		return fmt.Errorf("%s: %w", b.where, err)
	case !info.Dir:
		return p.Errorf("name the directory that it stands in; a link is never followed", "cleans up %s, which is no directory", b.top)
	}
	if p.IsSource(b.top) {
		// It is moved away as a whole: nothing of it can be left behind.
		b.evidence = &evidence{Moved: true}
		return p.Set(b.params, b.evidence)
	}
	w := walker{step: b, p: p, device: info.Device, evidence: &evidence{Top: &info.ID}}
	if err := w.walk(ctx, b.top); err != nil {
		return err
	}
	if w.leftovers > 0 && b.params.Leftovers != LeftoversDelete {
		more := ""
		if n := w.leftovers - len(w.names); n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		return p.Errorf("they may be another task's output: publish or remove them, or say leftovers: "+LeftoversDelete,
			"cleans up %s, where %d things lie that the plan does not move: %s%s", b.top, w.leftovers, strings.Join(w.names, ", "), more)
	}
	b.evidence = w.evidence
	return p.Set(b.params, b.evidence)
}

// walker records a tree. It follows no link.
type walker struct {
	*step
	p         *commitstep.Preparation
	device    string
	evidence  *evidence
	leftovers int
	names     []string
}

func (w *walker) walk(ctx context.Context, dir commitstep.Address) error {
	var dirs []filesys.Info
	for info, err := range w.fs.List(ctx, dir) {
		if err != nil {
			return &commitstep.PlanError{Where: w.where, Problem: fmt.Sprintf("cannot look below %s", w.top), Err: err}
		}
		if w.p.IsSource(info.Path) {
			continue
		}
		e := entry{Name: strings.TrimPrefix(info.Path.Path, strings.TrimSuffix(w.top.Path, "/")+"/"), ID: info.ID}
		if info.Dir {
			if info.Device != w.device {
				return w.p.Errorf("unmount it, or name a directory without a mount in it", "cleans up %s, and %s inside it is another file system", w.top, info.Path)
			}
			w.evidence.Dirs = append(w.evidence.Dirs, e)
			dirs = append(dirs, info)
		} else {
			w.leftovers++
			if len(w.names) < shown {
				w.names = append(w.names, fmt.Sprintf("%q", e.Name))
			}
			if w.params.Leftovers == LeftoversDelete {
				e.Size, e.MTime, e.Other = info.Size, info.MTime, info.Other
				w.evidence.Files = append(w.evidence.Files, e)
			}
		}
		if len(w.evidence.Dirs)+len(w.evidence.Files) >= MaxRecorded {
			return w.p.Errorf("clean up a smaller directory, or remove what nobody needs first", "cleans up %s, where more than %d files and directories would have to be recorded", w.top, MaxRecorded-1)
		}
	}
	for _, d := range dirs {
		if err := w.walk(ctx, d.Path); err != nil {
			return err
		}
	}
	return nil
}
