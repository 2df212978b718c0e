package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

type publishOptions struct {
	plan   planSource
	dryRun bool
	policy policyFlags
}

func (in *invocation) publishCommand() *cobra.Command {
	var o publishOptions
	c := &cobra.Command{
		Use:   "publish -f PLAN",
		Short: "Publish what a plan lists, each step exactly once",
		Long: `Publish checks a plan, stores it durably, and then runs its steps. Once it is
stored the plan is a promise: after a crash ` + "`commitstep recover`" + ` finishes it.
With an id in the plan the command may be repeated: a plan that is completed
already is success.
` + planHelp + exitStatus(ExitDecision, ExitLocked, ExitStale, ExitPending, ExitStore, ExitInterrupted),
		Example: "  commitstep publish -f plan.yaml\n  generate-plan | commitstep publish -f - --format jsonl -o json",
		Args:    noArgs,
	}
	f := c.Flags()
	o.plan.addFlags(f)
	f.BoolVar(&o.dryRun, "dry-run", false, "only check, as `commitstep plan validate` does")
	o.policy.addFlags(f)
	c.RunE = in.run(func(ctx context.Context, _ []string) error {
		if err := o.policy.check(f); err != nil {
			return err
		}
		if o.dryRun {
			return in.validate(ctx, o.plan)
		}
		return o.plan.with(ctx, in, func(p *commitstep.Plan) error {
			return in.withStore(ctx, func(s *session) error { return in.publish(ctx, s, p, o.policy, nil) })
		})
	})
	return c
}

// publish runs one plan and prints what became of it. kill, if given, replaces
// the crash point of the environment.
func (in *invocation) publish(ctx context.Context, s *session, p *commitstep.Plan, policy policyFlags, kill func(string)) error {
	var cleaned cleanups
	err := s.start(func(c *driver.Config) {
		policy.apply(c)
		c.Observer = cleaned.watch(c.Observer)
		if kill != nil {
			c.KillPoint = kill
		}
	})
	if err != nil {
		return err
	}
	res, perr := s.engine.Publish(ctx, p)
	if !cleaned.ran() {
		in.whyWaiting(ctx, s, p.Key, &res, perr)
	}
	// Waits for the cleanup, so that the report can say how it ended.
	cerr := s.stopEngine()
	if res.Status == "" {
		return errors.Join(unstored(s.explain(ctx, p.Key, perr)), cerr)
	}
	if res.Cleanup == "" {
		res.Cleanup = cleaned.of(res, len(p.CleanupSteps) > 0)
	}
	v := viewResult(res)
	err = in.print(document{kind: "PublishResult", body: v, table: func(t *table) { v.table(t, true) }})
	return errors.Join(perr, err, cerr)
}

// lookTime bounds the look at what an earlier call left.
const lookTime = 10 * time.Second

// whyWaiting adds to the answer about a plan that an earlier call stored why it
// is not finished: what its steps say now, and what that call said.
func (in *invocation) whyWaiting(ctx context.Context, s *session, key commitstep.Key, res *driver.Result, perr error) {
	if res.Status != driver.StatusWaiting {
		return
	}
	why := "an earlier call stored it and did not come to its end"
	// One step is told of; those behind it may each take a time limit.
	looking, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	if insp, _ := s.engine.Inspect(looking, key, true); insp.ID == res.ID {
		for _, v := range insp.StepViews {
			if v.LookError != "" {
				why += fmt.Sprintf("; step %d (%s) cannot look now: %s", v.Index+1, v.Kind, v.LookError)
				break
			}
			if !v.Progress.Done && v.Verdict != nil && v.Verdict.Outcome != commitstep.Done {
				why += fmt.Sprintf("; step %d (%s): %s", v.Index+1, v.Kind, v.Verdict)
				break
			}
		}
	}
	if res.Message != "" {
		why += "; that call ended as " + res.Message
	}
	res.Message = why
	var nf *driver.NotFinishedError
	if errors.As(perr, &nf) {
		nf.Result.Message = why
	}
}

// unstored says what an interrupt left behind that came before the plan was
// stored: nothing.
func unstored(err error) error {
	if !errors.Is(err, context.Canceled) || errors.Is(err, commitstep.ErrOutcomeUnknown) || strings.Contains(err.Error(), "nothing was stored") {
		return err
	}
	return &cliError{out: outcome{interrupted: true}, msg: "interrupted before the plan was stored, so nothing was stored", hint: "publish it again"}
}

// explain adds to a refusal what only the store knows: whether the other live
// sequence is running right now, or the dataset is quarantined.
func (s *session) explain(ctx context.Context, key commitstep.Key, err error) error {
	if errors.Is(err, commitstep.ErrDamaged) || errors.Is(err, commitstep.ErrNewerFormat) {
		return s.noSequence(ctx, err, fmt.Sprintf("dataset %s", key), func(q commitstep.Quarantined) bool { return !q.NameKnown || q.Key == key })
	}
	var p *commitstep.PendingError
	if !errors.As(err, &p) {
		return err
	}
	live, ferr := s.store.Find(ctx, p.ID)
	if ferr != nil {
		return err // it has ended meanwhile, or cannot be read: the first error stands
	}
	if in, until, held, herr := s.store.Holder(ctx, live); herr == nil && held {
		return &cliError{out: outcome{locked: true}, err: err, hint: "sequence " + live.ID.String() + " is run by " + holderUntil(instanceText(in), utc(until)) + "; try again when it has ended"}
	}
	return err
}

// cleanups remembers how cleanups ended, which run behind the answer, and
// whether this call stored the plan, and so ran it.
type cleanups struct {
	mu     sync.Mutex
	m      map[uuid.UUID]string
	stored bool
}

func (c *cleanups) ran() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stored
}

func (c *cleanups) watch(next driver.Observer) driver.Observer {
	return driver.ObserverFunc(func(ctx context.Context, ev driver.Event) {
		if ev.Type == driver.EventCleaned {
			c.mu.Lock()
			if c.m == nil {
				c.m = map[uuid.UUID]string{}
			}
			c.m[ev.Sequence] = ev.Message
			c.mu.Unlock()
		}
		if ev.Type == driver.EventStored {
			c.mu.Lock()
			c.stored = true
			c.mu.Unlock()
		}
		next.Observe(ctx, ev)
	})
}

// of is the text for a result; wanted says that its plan has a cleanup.
func (c *cleanups) of(r driver.Result, wanted bool) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	left, ok := c.m[r.ID]
	switch {
	case !wanted || r.Status != driver.StatusCompleted || r.Already:
		return ""
	case !ok:
		return "not finished; the next recover goes on with it"
	case left != "":
		return "done, stays: " + left
	}
	return "done"
}
