package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/shell"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

const targetsVariable = "COMMITSTEP_WATERMARK_TARGETS"

// fileTarget is a bound directory of watermarks. It is opened when it is first
// needed, and again if that failed: one that is not mounted must not keep the
// commands from everything else, and its sequences wait for it.
type fileTarget struct {
	name, dir string

	mu   sync.Mutex
	open *watermark.FileTarget
}

var _ watermark.Target = (*fileTarget)(nil)

func (t *fileTarget) files() (*watermark.FileTarget, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		f, err := watermark.Files(t.name, t.dir)
		if err != nil {
			return nil, fmt.Errorf("watermark target %s: %w", name(t.name), err)
		}
		t.open = f
	}
	return t.open, nil
}

func (t *fileTarget) Name() string { return t.name }

func (t *fileTarget) Watermark(ctx context.Context, k commitstep.WatermarkKey) (commitstep.WatermarkValue, error) {
	f, err := t.files()
	if err != nil {
		return commitstep.WatermarkValue{}, err
	}
	return f.Watermark(ctx, k)
}

func (t *fileTarget) CompareAndSet(ctx context.Context, m commitstep.WatermarkMove, sequence uuid.UUID) error {
	f, err := t.files()
	if err != nil {
		return commitstep.NotSent(err)
	}
	return f.CompareAndSet(ctx, m, sequence)
}

func (t *fileTarget) Settle(ctx context.Context, k commitstep.WatermarkKey, s *commitstep.Settling) error {
	f, err := t.files()
	if err != nil {
		return err
	}
	return f.Settle(ctx, k, s)
}

// boundTargets are the targets of the flag and the environment. A name in the
// flag wins over the same one in the environment.
func (in *invocation) boundTargets() ([]*fileTarget, error) {
	var out []*fileTarget
	add := func(source, text string) error {
		n, dir, ok := strings.Cut(text, "=")
		if err := commitstep.CheckName("watermark target", n); !ok || err != nil || dir == "" || strings.Contains(dir, "://") {
			return usagef("%s %q is not NAME=DIR, a name that plans use and the directory that keeps its watermarks", source, text)
		}
		abs, err := filepath.Abs(dir)
		if err != nil {
			return usagef("%s %q: %v", source, text, err)
		}
		if i := slices.IndexFunc(out, func(t *fileTarget) bool { return t.name == n }); i >= 0 {
			if source != targetsVariable {
				return usagef("%s binds %s twice", source, name(n))
			}
			return nil
		}
		out = append(out, &fileTarget{name: n, dir: abs})
		return nil
	}
	for _, text := range in.targets {
		if err := add("--watermark-target", text); err != nil {
			return nil, err
		}
	}
	fromFlags := len(out)
	for _, text := range filepath.SplitList(in.Env(targetsVariable)) {
		if text == "" {
			continue
		}
		n, _, _ := strings.Cut(text, "=")
		if slices.ContainsFunc(out[fromFlags:], func(t *fileTarget) bool { return t.name == n }) {
			return nil, usagef("%s binds %s twice", targetsVariable, name(n))
		}
		if err := add(targetsVariable, text); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// watermarkTarget is the bound directory of a name.
func (s *session) watermarkTarget(n string) (*fileTarget, error) {
	for _, t := range s.targets {
		if t.name == n {
			return t, nil
		}
	}
	if s.tableTarget(n) != nil {
		return nil, usagef("watermark target %s is a table of your own: change it with SQL, and set its token column to NULL with the value", name(n))
	}
	return nil, usagef("no watermark target %s is bound; bind it with --watermark-target %s=DIR or %s", name(n), shell.Quote(n), targetsVariable)
}

// actionSetting is the audit entry before a person's value is written to a
// target, so that none is ever written without one.
const (
	actionSetting = "watermark.setting"
	actionSet     = "watermark.set"
)

// setTarget sets a watermark that a target keeps. The commit store and the
// target have no transaction in common: the audit says first what is about to
// be done, and then that it was.
func (s *session) setTarget(ctx context.Context, t *fileTarget, m commitstep.WatermarkMove, p store.Person) error {
	f, err := t.files()
	if err != nil {
		return err
	}
	entry := store.AuditEntry{Person: p, Action: actionSetting, Key: commitstep.Key{Job: m.Job, Dataset: m.Source}, Decision: "target " + t.name, Before: m.From.String(), After: m.To.String()}
	if err := s.store.RecordAudit(ctx, entry); err != nil {
		return err
	}
	if err := f.Set(ctx, m.WatermarkKey, m.From, m.To); err != nil {
		return err
	}
	entry.Action = actionSet
	if err := s.store.RecordAudit(context.WithoutCancel(ctx), entry); err != nil {
		return failf("the audit has the entry "+actionSetting+" only", "watermark %s is set, but that it came to its end is not in the audit: %v", name(m.Source), err)
	}
	return nil
}

// freeOf refuses to touch a watermark that a live sequence moves, or may move.
func (s *session) freeOf(ctx context.Context, k commitstep.WatermarkKey) error {
	info := s.store.Info()
	if info.SealedFor != "" {
		return fmt.Errorf("%w: use %s", commitstep.ErrSealed, info.SealedFor)
	}
	if info.Stamped != "" {
		return fmt.Errorf("%w: %s", commitstep.ErrStamped, info.Stamped)
	}
	lock := k.Lock()
	for live, err := range s.store.Scan(ctx, store.Filter{States: []commitstep.State{commitstep.Pending, commitstep.Parked}}) {
		if err != nil {
			return err
		}
		if slices.Contains(live.Locks, lock) {
			return s.explain(ctx, live.Key, &commitstep.PendingError{Key: live.Key, ID: live.ID, State: live.State, Reason: live.Reason, Lock: lock})
		}
	}
	q, err := s.store.Quarantine(ctx)
	if err == nil && slices.ContainsFunc(q, func(d commitstep.Quarantined) bool { return !d.NameKnown || d.Key.Job == k.Job }) {
		err = &cliError{out: outcome{decision: true}, msg: "a quarantined record may move this watermark", hint: "deal with `commitstep quarantine list` first"}
	}
	return err
}

// readWatermark reads one from the commit store, or from a target if one is
// named; none when it was never set.
func (s *session) readWatermark(ctx context.Context, target string, k commitstep.WatermarkKey) (commitstep.WatermarkValue, error) {
	var r watermark.Reader = s.store
	if target != "" {
		if t := s.tableTarget(target); t != nil {
			r = t
		} else if t, err := s.watermarkTarget(target); err != nil {
			return commitstep.WatermarkValue{}, err
		} else {
			r = t
		}
	}
	v, err := r.Watermark(ctx, k)
	if errors.Is(err, commitstep.ErrNotFound) {
		return commitstep.WatermarkValue{WatermarkKey: k, Unaccepted: v.Unaccepted}, nil
	}
	return v, err
}
