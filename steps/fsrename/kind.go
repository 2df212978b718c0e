package fsrename

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

// Name is the kind's name, Version the newest version of its parameters and
// evidence.
const (
	Name    = "fs.rename"
	Version = 1
)

// Params are the parameters as written in a plan; stored ones hold resolved
// addresses.
type Params struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Length is how many bytes the writer says it wrote, for a directory the
	// sum over its files; nil is not checked.
	Length *int64 `json:"length,omitempty"`
	// Attributes of the published file or directory itself; for a directory
	// they do not reach what is inside.
	filesys.Attributes
}

// Option adds to a Move.
type Option func(*Params)

// Length is how many bytes the writer of the staged file says it wrote. A plan
// whose file has another length is refused.
func Length(bytes int64) Option { return func(p *Params) { p.Length = &bytes } }

// Mode sets permission bits in octal, "0640".
func Mode(octal string) Option { return func(p *Params) { p.Mode = octal } }

// Owner sets the owner, by name or number.
func Owner(user string) Option { return func(p *Params) { p.Owner = user } }

// Group sets the group, by name or number.
func Group(group string) Option { return func(p *Params) { p.Group = group } }

// Move publishes the staged file or directory from under the name to. Paths
// are relative to the plan's base, absolute, or addresses (hdfs://prod/x).
func Move(from, to string, opts ...Option) commitstep.StepSpec {
	p := Params{From: from, To: to}
	for _, o := range opts {
		o(&p)
	}
	spec := commitstep.NewSpec(Name, p)
	// JSON would replace the bytes it cannot hold, and so name other files.
	for _, s := range []string{from, to, p.Mode, p.Owner, p.Group} {
		if !utf8.ValidString(s) && spec.Err == nil {
			spec.Err = &commitstep.PlanError{Where: fmt.Sprintf("%s %q", Name, s), Problem: "is not valid UTF-8", Hint: "plans are UTF-8 text; rename the file"}
		}
	}
	return spec
}

// Kind is the step's behaviour on the given file systems, one per resource.
func Kind(files ...filesys.FS) commitstep.Kind { return kindAt(time.Now, files...) }

// kindAt is Kind with a clock, by which looks grow old.
func kindAt(now func() time.Time, files ...filesys.FS) commitstep.Kind {
	byResource := make(map[string]filesys.FS, len(files))
	var surveys func(context.Context, []commitstep.CommitStep)
	for _, f := range files {
		byResource[f.Resource()] = f
		if _, ok := f.(filesys.BatchStater); ok {
			surveys = survey
		}
	}
	return commitstep.Kind{Name: Name, Version: Version, Class: commitstep.DataStep, Survey: surveys, New: func(s commitstep.Step) (commitstep.CommitStep, error) {
		b, err := build(s, byResource)
		if err != nil {
			return nil, err
		}
		b.now = now
		return b, nil
	}}
}

// step is one rename. fs is the file system of both addresses.
type step struct {
	where    string
	fs       filesys.FS
	now      func() time.Time
	params   Params
	from, to commitstep.Address // resolved only if the parameters are
	// toDirectory: the plan wrote the destination with a slash at its end. The
	// resolved address does not tell any more.
	toDirectory bool
	evidence    *evidence // nil while it is planned
	sight       sight
	// seen is the time before the look at which Verify last found the source as
	// planned and the destination free, parent whether the directory of the
	// latter was there.
	seen   time.Time
	parent bool
	// failed is how an earlier rename of this process failed that may have taken
	// place all the same.
	failed error
	// links is how many names the destination had when Verify last looked.
	links int
}

var (
	_ commitstep.CommitStep = (*step)(nil)
	_ commitstep.Resolver   = (*step)(nil)
	_ commitstep.Preparer   = (*step)(nil)
	_ commitstep.Settler    = (*step)(nil)
	_ commitstep.Discarder  = (*step)(nil)
)

func build(s commitstep.Step, files map[string]filesys.FS) (*step, error) {
	b := &step{where: commitstep.Where(s.Stage, s.Index, s.Kind)}
	if !quickParams(s.Params, &b.params) {
		b.params = Params{}
		if err := commitstep.DecodeParams(s, &b.params); err != nil {
			return nil, err
		}
	}
	b.toDirectory = strings.HasSuffix(b.params.To, "/") || strings.HasSuffix(b.params.To, "/.")
	var err error
	// Relative paths are local ones; which directory they start at matters
	// only once they are resolved.
	if b.from, err = commitstep.ParseAddress(b.params.From, "/"); err != nil {
		return nil, b.wrap("source", err)
	}
	if b.to, err = commitstep.ParseAddress(b.params.To, "/"); err != nil {
		return nil, b.wrap("destination", err)
	}
	if b.from.Resource != b.to.Resource {
		return nil, &commitstep.PlanError{Where: b.where, Problem: fmt.Sprintf("moves from %s to %s", b.from.Resource, b.to.Resource), Hint: "no rename between two file systems is atomic; stage on the one that you publish to", Err: filesys.ErrOtherFileSystem}
	}
	if b.params.Length != nil && *b.params.Length < 0 {
		return nil, &commitstep.PlanError{Where: b.where, Problem: fmt.Sprintf("has the length %d", *b.params.Length), Hint: "give the bytes that were written, or leave it out"}
	}
	if b.fs = files[b.from.Resource]; b.fs == nil {
		return nil, fmt.Errorf("%w: %w", commitstep.ErrUnsupported, &filesys.NotConfiguredError{Resource: b.from.Resource})
	}
	if len(s.Evidence) > 0 {
		b.evidence = &evidence{}
		if quickEvidence(s.Evidence, b.evidence) {
			return b, nil
		}
		*b.evidence = evidence{}
		if err := json.Unmarshal(s.Evidence, b.evidence); err != nil {
			return nil, fmt.Errorf("%s: evidence: %w: %w", b.where, commitstep.ErrDamaged, err)
		}
		if !b.evidence.usable() {
			b.evidence = nil
		}
	}
	return b, nil
}

// Summary is "source -> destination".
func (b *step) Summary() string { return short(b.from) + " -> " + short(b.to) }

// short is for people. A path with a line break, a tab or blanks at an end is
// quoted, so that it cannot be taken for another.
func short(a commitstep.Address) string {
	text := a.String()
	if a.Resource == commitstep.LocalResource {
		text = a.Path
	}
	plain := strings.TrimSpace(text) == text && !strings.Contains(text, "  ") && !strings.HasPrefix(text, `"`)
	for _, r := range text {
		plain = plain && strconv.IsPrint(r)
	}
	if !plain {
		return strconv.Quote(text)
	}
	return text
}

func (b *step) wrap(which string, err error) error {
	var p *commitstep.PlanError
	if errors.As(err, &p) {
		return &commitstep.PlanError{Where: b.where, Problem: fmt.Sprintf("has a wrong %s: %s %s", which, p.Where, p.Problem), Hint: p.Hint, Err: p.Err}
	}
	return &commitstep.PlanError{Where: b.where, Problem: "has a wrong " + which, Err: err}
}

// Resolve makes both addresses absolute.
func (b *step) Resolve(p *commitstep.Preparation) error {
	var err error
	if b.from, err = b.fs.Resolve(b.params.From, p.BaseDir); err != nil {
		return b.wrap("source", err)
	}
	if b.to, err = b.fs.Resolve(b.params.To, p.BaseDir); err != nil {
		return b.wrap("destination", err)
	}
	b.params.From, b.params.To = b.from.String(), b.to.String()
	return p.Set(b.params, nil)
}
