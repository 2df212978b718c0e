package fsremove

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

// KeepSteps protects what the given steps staged ([commitstep.StagedBy]) and
// everything below it; see [commitstep.Cleaner]. Steps that can have nothing to do
// with what was recorded are not remembered: there may be very many.
func (b *step) KeepSteps(steps []commitstep.Step) {
	for _, s := range steps {
		staged := commitstep.StagedBy(s)
		if len(staged) == 0 {
			continue
		}
		var id filesys.ID
		_ = json.Unmarshal(s.Evidence, &id) // of another kind of evidence: no id
		for _, a := range staged {
			a.Resource = b.ownName(a.Resource)
			if id.IsZero() || b.top.Contains(a) || a.Contains(b.top) || b.records(id) {
				b.keep = append(b.keep, a)
			}
		}
	}
}

// ownName is the name by which this cleanup calls a resource: an HDFS may be bound
// over both of its protocols.
func (b *step) ownName(resource string) string {
	if own := b.top.Resource; strings.TrimPrefix(own, "web") == strings.TrimPrefix(resource, "web") {
		return own
	}
	return resource
}

// records reports whether a recorded file or directory has this identity: then
// the path of another step leads to it through a link.
func (b *step) records(id filesys.ID) bool {
	if b.evidence == nil {
		return false
	}
	if b.recordedIDs == nil {
		b.recordedIDs = map[filesys.ID]bool{}
		for _, list := range [][]entry{b.evidence.Files, b.evidence.Dirs} {
			for _, e := range list {
				b.recordedIDs[e.ID] = true
			}
		}
	}
	return b.recordedIDs[id]
}

// Shared reports whether files were recorded that the plan itself did not
// stage, which may be another sequence's; see [commitstep.SharedCleaner].
func (b *step) Shared() bool { return b.evidence != nil && len(b.evidence.Files) > 0 }

// Report says what stays of the last Execute, and why; see
// [commitstep.Cleaner].
func (b *step) Report() string { return b.report }

// kept holds the paths of KeepSteps. A path can lead to a kept file by another
// name, through a link, so what lies there is kept by its identity too.
type kept struct {
	paths []commitstep.Address
	ids   map[filesys.ID]bool
}

func (b *step) kept(ctx context.Context) (kept, error) {
	k := kept{paths: b.keep, ids: map[filesys.ID]bool{}}
	for _, a := range b.keep {
		info, err := b.fs.Stat(ctx, a)
		switch {
		case err == nil:
			if !info.ID.IsZero() {
				k.ids[info.ID] = true
			}
		case filesys.Missing(err), a.Resource != b.fs.Resource(), errors.Is(err, filesys.ErrEscapes):
		default:
			return k, err
		}
	}
	return k, nil
}

func (k kept) has(i filesys.Info) bool {
	for _, a := range k.paths {
		if a.Contains(i.Path) {
			return true
		}
	}
	return k.ids[i.ID]
}

// matches reports whether what lies at a recorded file's path is that file.
func matches(got, want filesys.Info) bool {
	return !got.Dir && got.Other == want.Other && got.ID == want.ID && got.Size == want.Size && got.MTime.Equal(want.MTime)
}

// recorded are the recorded files by directory, for private places whose
// file's name was forgotten.
func (b *step) recorded() func(filesys.Info) bool {
	byDir := map[commitstep.Address][]filesys.Info{}
	for _, e := range b.evidence.Files {
		f := b.file(e)
		byDir[f.Path.Dir()] = append(byDir[f.Path.Dir()], f)
	}
	return func(got filesys.Info) bool {
		for _, want := range byDir[got.Path.Dir()] {
			if matches(got, want) {
				return true
			}
		}
		return false
	}
}

// Verify is done when nothing that was recorded, and may be removed, is there.
func (b *step) Verify(ctx context.Context, _ *commitstep.Attempt) (commitstep.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return commitstep.Verdict{}, err
	}
	if b.evidence == nil {
		return commitstep.IsUnknown("nothing was recorded when the cleanup of %s was planned", b.top), nil
	}
	k, err := b.kept(ctx)
	if err != nil {
		return commitstep.Verdict{}, err
	}
	standing, err := b.standing(ctx)
	if err != nil {
		return commitstep.Verdict{}, err
	}
	for _, e := range b.evidence.Files {
		want := b.file(e)
		if !standing[want.Path.Dir()] {
			continue
		}
		got, err := b.fs.Stat(ctx, want.Path)
		if gone(err) {
			continue
		}
		if err != nil {
			return commitstep.Verdict{}, err
		}
		if matches(got, want) && !k.has(got) {
			return commitstep.IsNotDone("%s is still there as recorded", want.Path), nil
		}
	}
	// A directory is to go when it holds nothing but directories that are to go.
	goes := map[commitstep.Address]bool{}
	ours := b.ours(k)
	dirs := b.dirs()
	for n := len(dirs) - 1; n >= 0; n-- {
		want := dirs[n]
		if !standing[want.Path] {
			continue
		}
		todo, err := b.sweep(ctx, want, ours, true)
		if err != nil {
			return commitstep.Verdict{}, err
		}
		if todo.Todo > 0 {
			return commitstep.IsNotDone("a removal in %s did not end", want.Path), nil
		}
		if k.has(want) {
			continue
		}
		empty, err := b.onlyHolds(ctx, want, goes)
		if err != nil {
			return commitstep.Verdict{}, err
		}
		if empty {
			goes[want.Path] = true
		}
	}
	if len(goes) > 0 {
		return commitstep.IsNotDone("%d recorded directories below %s are empty and still there", len(goes), b.top), nil
	}
	return commitstep.IsDone("nothing that was recorded and is still the same lies below %s", b.top), nil
}

// standing are the recorded directories that are still at their paths. One
// below a directory that was replaced is not among them, even if a link leads
// to it: what somebody moved elsewhere is theirs.
func (b *step) standing(ctx context.Context) (map[commitstep.Address]bool, error) {
	out := map[commitstep.Address]bool{}
	for i, want := range b.dirs() { // each before what is inside it
		if i > 0 && !out[want.Path.Dir()] {
			continue
		}
		got, err := b.fs.Stat(ctx, want.Path)
		switch {
		case err == nil:
			out[want.Path] = got.Dir && got.ID == want.ID
		case !gone(err):
			return nil, err
		}
	}
	return out, nil
}

// onlyHolds reports whether want, which stands, holds nothing but entries of
// goes.
func (b *step) onlyHolds(ctx context.Context, want filesys.Info, goes map[commitstep.Address]bool) (bool, error) {
	for info, err := range b.fs.List(ctx, want.Path) {
		if gone(err) {
			return false, nil
		}
		if err != nil && info.Path != (commitstep.Address{}) {
			return false, nil // a name that nobody recorded
		}
		if err != nil {
			return false, err
		}
		if !goes[info.Path] {
			return false, nil
		}
	}
	return true, nil
}

// gone reports that nothing recorded can lie at a path: it is free, or a link
// or file has replaced a directory above it.
func gone(err error) bool {
	return filesys.Missing(err) || errors.Is(err, filesys.ErrEscapes)
}

func (b *step) ours(k kept) func(filesys.Info) bool {
	recorded := b.recorded()
	return func(i filesys.Info) bool { return recorded(i) && !k.has(i) }
}

// sweep finishes removals that did not end in a recorded directory, which
// stands: in another one the private places are not ours.
func (b *step) sweep(ctx context.Context, want filesys.Info, ours func(filesys.Info) bool, look bool) (filesys.Swept, error) {
	s, ok := b.fs.(filesys.Sweeper)
	if !ok {
		return filesys.Swept{}, nil
	}
	return s.Sweep(ctx, want.Path, ours, look)
}

// Execute removes the recorded files that are still the same, then, innermost
// first, the recorded directories that are empty. One that fails does not keep
// the others; the error joins all failures, and a repeat goes on.
func (b *step) Execute(ctx context.Context, _ *commitstep.Attempt) error {
	if err := ctx.Err(); err != nil {
		return commitstep.NotSent(err)
	}
	b.report = ""
	if b.evidence == nil {
		return commitstep.Permanent(fmt.Errorf("%s: nothing was recorded when it was planned", b.Summary()))
	}
	k, err := b.kept(ctx)
	if err != nil {
		return commitstep.NotSent(fmt.Errorf("%s: %w", b.Summary(), err))
	}
	r := &remains{step: b, kept: k}
	if err := r.run(ctx); err != nil {
		return err
	}
	if len(r.failed) > 0 {
		return fmt.Errorf("%s: %w", b.Summary(), errors.Join(r.failed...))
	}
	if err := r.durable(ctx); err != nil {
		return fmt.Errorf("%s: the removal is not durable yet: %w", b.Summary(), err)
	}
	b.report = r.text()
	return nil
}

// maxFailures bounds the errors that one Execute collects; a full or broken
// disk fails for every file in the same way.
const maxFailures = 10

// remains collects what one Execute could not or would not remove.
type remains struct {
	*step
	kept   kept
	stays  []string
	others []commitstep.Address // replaced directories that were reported
	left   []commitstep.Address // recorded directories that are not empty
	count  int
	failed []error
}

func (r *remains) stay(format string, a ...any) {
	r.count++
	if len(r.stays) < shown {
		r.stays = append(r.stays, fmt.Sprintf(format, a...))
	}
}

func (r *remains) fail(err error) {
	if len(r.failed) < maxFailures {
		r.failed = append(r.failed, err)
	}
}

func (r *remains) text() string {
	if r.count == 0 {
		return ""
	}
	s := strings.Join(r.stays, "; ")
	if n := r.count - len(r.stays); n > 0 {
		s += fmt.Sprintf("; and %d more", n)
	}
	return s
}

func (r *remains) run(ctx context.Context) error {
	dirs, ours := r.dirs(), r.ours(r.kept)
	standing, err := r.standing(ctx)
	if err != nil {
		return commitstep.NotSent(fmt.Errorf("%s: %w", r.Summary(), err))
	}
	for _, d := range dirs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !standing[d.Path] {
			r.replaced(ctx, d)
			continue
		}
		swept, err := r.sweep(ctx, d, ours, false)
		if err != nil {
			r.fail(err)
		}
		for _, s := range swept.Stays {
			r.stay("%s", s)
		}
	}
	for _, e := range r.evidence.Files {
		if err := ctx.Err(); err != nil {
			return err
		}
		want := r.file(e)
		if !standing[want.Path.Dir()] {
			continue
		}
		if r.kept.has(want) {
			r.stay("%s belongs to a step that was declared published or to another sequence", want.Path)
			continue
		}
		switch err := r.fs.Remove(ctx, want); {
		case err == nil, gone(err):
		case errors.Is(err, filesys.ErrChanged):
			r.stay("%v", err)
		default:
			r.fail(err)
		}
	}
	// Recorded each before what is inside it, so backwards is innermost first.
	for n := len(dirs) - 1; n >= 0; n-- {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !standing[dirs[n].Path] {
			continue
		}
		if err := r.dirGoes(ctx, dirs[n]); err != nil {
			r.fail(err)
		}
	}
	return nil
}

// replaced reports a recorded directory whose path holds something else now.
// Only the outermost one tells anything.
func (r *remains) replaced(ctx context.Context, want filesys.Info) {
	if _, err := r.fs.Stat(ctx, want.Path); err == nil && !r.below(want.Path) {
		r.others = append(r.others, want.Path)
		r.stay("%s is not the directory that was there when the cleanup was planned", want.Path)
	}
}

// below reports whether a replaced directory that was reported holds a.
func (r *remains) below(a commitstep.Address) bool {
	for _, o := range r.others {
		if o.Contains(a) {
			return true
		}
	}
	return false
}

func (r *remains) dirGoes(ctx context.Context, want filesys.Info) error {
	if r.kept.has(want) {
		r.stay("%s belongs to a step that was declared published or to another sequence", want.Path)
		r.left = append(r.left, want.Path)
		return nil
	}
	err := r.fs.RemoveDir(ctx, want)
	switch {
	case err == nil, gone(err):
		return nil
	case errors.Is(err, filesys.ErrNotEmpty):
		r.stay("directory %s is not empty", want.Path)
		r.left = append(r.left, want.Path)
		return nil
	case errors.Is(err, filesys.ErrChanged):
		r.stay("%v", err)
		return nil
	}
	return err
}

// durable syncs the directories that are left, and the nearest one above the
// path. The driver's record that the cleanup ended is durable; without this a
// power cut could bring files back that nobody would clean up any more, and
// the next plan for this directory would be refused because of them.
func (r *remains) durable(ctx context.Context) error {
	for _, d := range r.left {
		if err := r.fs.SyncDir(ctx, d); err != nil && !gone(err) {
			return err
		}
	}
	for dir := r.top.Dir(); ; dir = dir.Dir() {
		err := r.fs.SyncDir(ctx, dir)
		if !filesys.Missing(err) || dir == dir.Dir() {
			return err
		}
	}
}
