package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/steps/fsremove"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

// session is an open store with the step kinds bound to it.
type session struct {
	in       *invocation
	store    store.Full
	location string
	kinds    *commitstep.Registry
	engine   *driver.Engine
	files    []*resource
	targets  []*fileTarget
	tables   []*tableTarget
	hive     []*hiveServer
}

// withStore opens the store, tells which one, runs fn and closes everything.
// What fn did stands even when closing fails, so both errors are told.
func (in *invocation) withStore(ctx context.Context, fn func(*session) error) error {
	scheme, rest, location, err := in.locate()
	if err != nil {
		return err
	}
	st, err := scheme.open(ctx, rest)
	if err != nil {
		return storeErr(location, err)
	}
	return in.using(st, location, fn)
}

// using is withStore for a store that is open already.
func (in *invocation) using(st store.Full, location string, fn func(*session) error) (err error) {
	in.used = location
	s := &session{in: in, store: st, location: location}
	defer func() { err = errors.Join(err, s.close()) }()
	if !in.quiet {
		info := st.Info()
		in.talk("Notice", struct {
			Message string    `json:"message"`
			Store   string    `json:"store"`
			StoreID uuid.UUID `json:"storeId"`
		}{"using the store", location, info.ID}, fmt.Sprintf("store %s (%s)", oneLine(location), info.ID))
	}
	if s.files, err = in.openResources(); err != nil {
		return err
	}
	if s.targets, err = in.boundTargets(); err != nil {
		return err
	}
	bound := make([]watermark.Target, len(s.targets))
	for i, t := range s.targets {
		bound[i] = t
	}
	if bound, err = s.bindTables(bound); err != nil {
		return err
	}
	if s.hive, err = in.openHive(s.files); err != nil {
		return err
	}
	all := fileSystems(s.files)
	own := []commitstep.Kind{s.in.explained(fsrename.Kind(all...), s.files), s.in.explained(fsremove.Kind(all...), s.files), watermark.Kind(st, bound...)}
	s.kinds, err = mergeKinds(append(own, hivepublish.Kinds(hiveServers(s.hive)...)...), in.Kinds)
	if err != nil {
		return err
	}
	return fn(s)
}

// start makes the engine. change may alter its configuration; nil is fine.
func (s *session) start(change func(*driver.Config)) error {
	cfg := driver.Config{Store: s.store, Kinds: s.kinds, Owner: "commitstep", Observer: driver.ObserverFunc(s.observe), KillPoint: s.in.killPoint()}
	if change != nil {
		change(&cfg)
	}
	e, err := driver.New(cfg)
	if err != nil {
		return err
	}
	s.engine = e
	return nil
}

// stopEngine waits for cleanups; close does it too.
func (s *session) stopEngine() error {
	if s.engine == nil {
		return nil
	}
	e := s.engine
	s.engine = nil
	// The command's context may have ended; what is in flight is finished.
	return e.Close(context.Background())
}

func (s *session) close() error {
	err := s.stopEngine()
	if cerr := s.store.Close(); cerr != nil {
		err = errors.Join(err, fmt.Errorf("close %s: %w", s.location, cerr))
	}
	// Servers first: what they close may need the files.
	return errors.Join(err, closeHive(s.hive), closeResources(s.files), s.closeTables())
}

// observe tells what makes a person wait.
func (s *session) observe(_ context.Context, ev driver.Event) {
	where := "the sequence"
	if ev.Sequence == uuid.Nil {
		where = "the plan" // it is not stored yet
	}
	if ev.Step >= 0 {
		where = fmt.Sprintf("step %d (%s)", ev.Step+1, ev.Kind)
	}
	switch ev.Type {
	case driver.EventRetry:
		why := ev.Verdict.String()
		if ev.Err != nil {
			why = ev.Err.Error()
		}
		s.in.say("%s: %s again in %s: %s", name(ev.Key.Dataset), where, ev.Pause.Round(time.Millisecond), oneLine(why))
	case driver.EventWaiting:
		if ev.Err != nil {
			s.in.say("%s: %s waits: %s", name(ev.Key.Dataset), where, oneLine(ev.Err.Error()))
		}
	case driver.EventPrepared:
		s.in.say("%s: %d steps prepared", name(ev.Key.Dataset), ev.Count)
	}
}

// target finds the live sequence that a person names: a dataset together with
// --job, or a sequence id. A quarantined dataset is a decision, not a "no".
func (s *session) target(ctx context.Context, arg, job string) (commitstep.Live, error) {
	var live commitstep.Live
	var err error
	if job != "" {
		key := commitstep.Key{Job: job, Dataset: arg}
		if err := key.Validate(); err != nil {
			return live, usagef("%v", err)
		}
		if live, err = s.store.Get(ctx, key); err != nil {
			err = s.noSequence(ctx, err, fmt.Sprintf("dataset %s", key), func(q commitstep.Quarantined) bool { return q.NameKnown && q.Key == key })
		}
	} else {
		id, perr := parseSequence(arg)
		if perr != nil {
			return live, usagef("%q is no sequence id; a dataset is named together with its --job", arg)
		}
		if live, err = s.store.Find(ctx, id); err != nil {
			if h, herr := s.store.LookupHistory(ctx, id); herr == nil {
				return live, &cliError{out: outcome{notFound: true}, err: commitstep.ErrNotFound,
					msg: fmt.Sprintf("sequence %s of dataset %s has ended, it is %s", id, h.Key, h.State), hint: fmt.Sprintf("`%s history show %s` shows it", s.in.Program, id)}
			}
			err = s.noSequence(ctx, err, "sequence "+id.String(), func(q commitstep.Quarantined) bool { return q.ID == id })
		}
	}
	return live, err
}

// noSequence explains why there is no live sequence to be had. A damaged record
// among others is a decision, not the end of the store.
func (s *session) noSequence(ctx context.Context, err error, what string, match func(commitstep.Quarantined) bool) error {
	absent := errors.Is(err, commitstep.ErrNotFound)
	if !absent && !errors.Is(err, commitstep.ErrDamaged) && !errors.Is(err, commitstep.ErrNewerFormat) {
		return err
	}
	q, qerr := s.store.Quarantine(ctx)
	if qerr != nil {
		return errors.Join(err, qerr)
	}
	for _, d := range q {
		if match(d) {
			return &cliError{out: outcome{decision: true}, msg: fmt.Sprintf("%s cannot be read: %s: %s", what, d.Where, d.Problem), hint: fmt.Sprintf("see `%s quarantine list`", s.in.Program)}
		}
	}
	if !absent {
		return err
	}
	return &cliError{out: outcome{notFound: true}, msg: what + " has no live sequence",
		hint: fmt.Sprintf("`%s pending list` shows what is live, `%s history list` what has ended", s.in.Program, s.in.Program)}
}

// parseSequence reads a sequence id in its usual form only, so that few texts
// are taken for one.
func parseSequence(s string) (uuid.UUID, error) {
	if len(s) != 36 {
		return uuid.Nil, errors.New("not a sequence id")
	}
	return uuid.Parse(s)
}

const targetHelp = "Name a sequence by its id, or a dataset together with its --job."
