package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

// RecoverOption narrows or changes one Recover.
type RecoverOption func(*recoverOptions)

type recoverOptions struct {
	match       func(string) bool
	concurrency int
	dryRun      bool
	budget      time.Duration
	each        func(Result)
}

// Datasets recovers only the datasets that match. Such a report lets nothing
// be ingested, since it has not read the job to its end.
func Datasets(match func(dataset string) bool) RecoverOption {
	return func(o *recoverOptions) { o.match = match }
}

// Concurrency is how many sequences run at once in this Recover.
func Concurrency(n int) RecoverOption { return func(o *recoverOptions) { o.concurrency = n } }

// DryRun only looks: it verifies every step of what is pending and reports
// what a recover would find, claiming and writing nothing.
func DryRun() RecoverOption { return func(o *recoverOptions) { o.dryRun = true } }

// Budget replaces Policy.RecoverBudget.
func Budget(d time.Duration) RecoverOption { return func(o *recoverOptions) { o.budget = d } }

// Each is called with every result as it comes, from one goroutine at a time.
func Each(fn func(Result)) RecoverOption { return func(o *recoverOptions) { o.each = fn } }

// Recover finishes or parks everything pending of a job ("" is all jobs): the
// first thing a job does. It streams through what is pending, several at once;
// the trouble of one dataset never stops another's. When something cannot be
// reached it is waited for within Policy.RecoverBudget and then reported as
// waiting.
//
// The error is nil when the store could be read to the end, however the
// datasets fared; see the Report. With an error, or when ctx ended, the Report
// says what was done and lets nothing be ingested.
func (e *Engine) Recover(ctx context.Context, job string, opts ...RecoverOption) (Report, error) {
	started := e.now()
	rep := Report{Job: job, Started: started, Counts: map[Status]int{}, notFree: map[string]Status{}, Results: []Result{}}
	if err := e.enter(); err != nil {
		return rep, err
	}
	o := recoverOptions{concurrency: e.cfg.Concurrency, budget: e.cfg.Policy.RecoverBudget}
	for _, f := range opts {
		f(&o)
	}
	rc := &recovery{e: e, o: o, job: job, rep: &rep, until: started.Add(o.budget), seen: map[commitstep.Key]Status{}, runs: map[uuid.UUID]*run{}}
	err := rc.all(ctx)
	rep.Took = e.now().Sub(started)
	slices.SortFunc(rep.Results, func(a, b Result) int { return a.Key.Compare(b.Key) })
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return rep, fmt.Errorf("recover job %q: %w", job, err)
	}
	rep.scoped = o.match != nil || o.dryRun
	rep.Complete = !o.dryRun && job != "" && !rc.hung && rep.Blocked == ""
	return rep, nil
}

type recovery struct {
	e     *Engine
	o     recoverOptions
	job   string
	until time.Time

	mu   sync.Mutex
	rep  *Report
	seen map[commitstep.Key]Status // what is not completed
	runs map[uuid.UUID]*run        // those on their way
	hung bool                      // some of them were left behind
}

func (rc *recovery) all(ctx context.Context) error {
	st := rc.e.cfg.Store
	if info := st.Info(); info.Unfinished {
		rc.rep.Blocked = "the store is an " + info.Stamped + "; repeat `commitstep store copy` with the same two stores"
		return nil
	} else if info.Stamped != "" && info.SealedFor == "" { // a seal speaks for itself
		rc.rep.Blocked = "the store is a copy (" + info.Stamped + "); `commitstep store adopt --reason …` makes it usable"
		return nil
	}
	if !rc.o.dryRun {
		if err := rc.claims(ctx); err != nil {
			return err
		}
		if rc.e.wantsPark() {
			if err := rc.tellParked(ctx); err != nil {
				return err
			}
		}
	}
	return rc.remains(ctx)
}

// claims runs what is pending, on at most concurrency goroutines.
func (rc *recovery) claims(ctx context.Context) error {
	work := make(chan claimed)
	var wg sync.WaitGroup
	for range max(1, rc.o.concurrency) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for c := range work {
				rc.add(rc.one(ctx, c))
			}
		}()
	}
	err := rc.feed(ctx, work)
	close(work)
	rc.wait(ctx, &wg)
	return err
}

// hand gives a sequence to a worker. It returns false when the recover ends
// before one is free: its context ended, or all workers hang.
func (rc *recovery) hand(ctx context.Context, work chan<- claimed, c claimed) bool {
	tick := time.NewTicker(hangCheck)
	defer tick.Stop()
	var over time.Time
	for {
		select {
		case work <- c:
			return true
		case <-ctx.Done():
			return false
		case now := <-tick.C:
			switch {
			case !rc.e.now().After(rc.until):
			case over.IsZero():
				over = now
			case now.Sub(over) > rc.e.cfg.Grace && rc.allHang(over):
				return false
			}
		}
	}
}

// allHang reports that every run on its way hangs.
func (rc *recovery) allHang(since time.Time) bool {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	for _, r := range rc.runs {
		if !r.hangs.since(since) {
			return false
		}
	}
	return true
}

// wait ends when every run has ended, or when all that is left are runs inside
// a step that ignores its context and has not returned since the budget was
// over. They go on in the background, under their claim, and are reported as
// waiting; a step's code cannot be stopped from outside.
func (rc *recovery) wait(ctx context.Context, wg *sync.WaitGroup) {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	tick := time.NewTicker(hangCheck)
	defer tick.Stop()
	stopped := ctx.Done()
	var since time.Time
	for {
		select {
		case <-done:
			return
		case <-stopped:
			stopped, since = nil, time.Now()
		case <-tick.C:
		}
		if since.IsZero() && rc.e.now().After(rc.until) {
			since = time.Now()
		}
		if since.IsZero() || time.Since(since) < rc.e.cfg.Grace {
			continue
		}
		if rc.giveUp(since) {
			return
		}
	}
}

// giveUp reports the runs that hang, if there are no others left.
func (rc *recovery) giveUp(since time.Time) bool {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	for _, r := range rc.runs {
		if !r.hangs.since(since) {
			return false
		}
	}
	rc.hung = true
	for _, r := range rc.runs {
		res := Result{Key: r.live.Key, ID: r.live.ID, Total: r.live.Steps, Status: StatusWaiting,
			Message: hungMessage(time.Now(), &r.hangs)}
		rc.record(res)
	}
	return true
}

type claimed struct {
	live  commitstep.Live
	lease *lease
}

// feed claims in small portions, so that what is claimed and not yet run stays
// bounded, and other drivers find something to do.
func (rc *recovery) feed(ctx context.Context, work chan<- claimed) error {
	f := store.ClaimFilter{Job: rc.job, Match: rc.o.match, Limit: max(1, rc.o.concurrency)}
	for ctx.Err() == nil {
		batch, l, err := rc.claim(ctx, f)
		if err != nil || len(batch) == 0 {
			return err
		}
		for i, live := range batch {
			if rc.hand(ctx, work, claimed{live, l}) {
				continue
			}
			for _, rest := range batch[i:] {
				_ = rc.e.cfg.Store.Release(context.WithoutCancel(ctx), l.fence(rest))
			}
			return nil
		}
		last := batch[len(batch)-1].Key
		f.After = &last
	}
	return nil
}

// maxRejoins bounds how often in a row a lease may end before it is used.
const maxRejoins = 10

// claim claims under the lease of now, which it begins anew where that ended: a
// driver that was paused for longer goes on like one that just started.
func (rc *recovery) claim(ctx context.Context, f store.ClaimFilter) ([]commitstep.Live, *lease, error) {
	for n := 1; ; n++ {
		l := rc.e.currentLease()
		batch, err := rc.e.cfg.Store.Claim(ctx, l.instance.ID, f)
		if errors.Is(err, commitstep.ErrFenced) && n < maxRejoins {
			if err := rc.e.rejoin(ctx, l); err != nil {
				return nil, nil, fmt.Errorf("claim: begin a new lease: %w", err)
			}
			continue
		}
		if err != nil {
			err = fmt.Errorf("claim: %w", err)
		}
		return batch, l, err
	}
}

func (rc *recovery) one(ctx context.Context, c claimed) Result {
	rc.e.observe(ctx, Event{Type: EventClaimed, Key: c.live.Key, Sequence: c.live.ID, Step: -1, Count: c.live.Steps})
	started := rc.e.now()
	r := &run{e: rc.e, lease: c.lease, live: c.live, fence: c.lease.fence(c.live), recovering: true, waitUntil: rc.until, budget: rc.o.budget}
	if c.live.State == commitstep.Completed && c.live.Cleaning {
		res := Result{Key: c.live.Key, ID: c.live.ID, Status: StatusCompleted, Already: true, Total: c.live.Steps, Recorded: c.live.Steps}
		effects, cancel := graceful(ctx, rc.e.cfg.Grace)
		defer cancel()
		res.Cleanup = rc.e.clean(effects, c.lease, c.live, r.fence)
		res.Took = rc.e.now().Sub(started)
		return res
	}
	rc.mu.Lock()
	r.hangs.watched = true
	rc.runs[r.live.ID] = r
	rc.mu.Unlock()
	return r.finish(ctx, started)
}

// add reports a result, unless Recover has returned without it.
func (rc *recovery) add(res Result) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	delete(rc.runs, res.ID)
	if !rc.hung {
		rc.record(res)
	}
}

func (rc *recovery) record(res Result) {
	rc.rep.Counts[res.Status]++
	if res.Status != StatusCompleted {
		rc.seen[res.Key] = res.Status
	}
	if res.Status != StatusCompleted || rc.rep.Counts[StatusCompleted] <= MaxResults {
		rc.rep.Results = append(rc.rep.Results, res)
	}
	if rc.o.each != nil {
		rc.o.each(res)
	}
}

// tellParked tells OnPark of parked sequences again, where it failed before. The
// time that those have which were parked just now is that of all of them; who does
// not get a turn is told by a later recover.
func (rc *recovery) tellParked(ctx context.Context) error {
	f := store.ClaimFilter{Job: rc.job, Match: rc.o.match, Limit: 64, Parked: true}
	until := rc.e.tellUntil(rc.until, rc.o.budget)
	for rc.e.now().Before(until) {
		batch, l, err := rc.claim(ctx, f)
		if err != nil || len(batch) == 0 {
			return err
		}
		for _, live := range batch {
			fence := l.fence(live)
			if rc.e.now().Before(until) {
				if err := rc.e.tellPark(ctx, live, fence, parkingOf(live), rc.e.tellUntil(until, 0)); err != nil {
					rc.e.observe(ctx, Event{Type: EventWaiting, Key: live.Key, Sequence: live.ID, Step: -1, Err: err})
				}
			}
			_ = rc.e.cfg.Store.Release(ctx, fence)
		}
		last := batch[len(batch)-1].Key
		f.After = &last
	}
	return nil
}

// remains adds what is still live, and what blocks the job.
func (rc *recovery) remains(ctx context.Context) error {
	st := rc.e.cfg.Store
	for live, err := range st.Scan(ctx, store.Filter{Job: rc.job, Match: rc.o.match, States: []commitstep.State{commitstep.Pending, commitstep.Parked}}) {
		if err != nil {
			return fmt.Errorf("scan: %w", err)
		}
		status, seen := rc.seen[live.Key]
		if !seen {
			res, gone, err := rc.left(ctx, live)
			if err != nil {
				return err
			}
			if gone {
				continue
			}
			rc.mu.Lock()
			rc.record(res)
			rc.mu.Unlock()
			status = res.Status
		}
		if live.Job == rc.job {
			rc.rep.notFree[live.Dataset] = status
		}
	}
	q, err := st.Quarantine(ctx)
	if err != nil {
		return fmt.Errorf("quarantine: %w", err)
	}
	for _, d := range q {
		if !d.NameKnown {
			rc.rep.Blocked = fmt.Sprintf("a record cannot be read, not even its name (%s: %s); run `commitstep store check`", d.Where, d.Problem)
		} else if rc.job != "" && d.Key.Job != rc.job || rc.o.match != nil && !rc.o.match(d.Key.Dataset) {
			continue
		}
		rc.rep.Quarantined = append(rc.rep.Quarantined, d)
		if d.NameKnown && d.Key.Job == rc.job {
			rc.rep.notFree[d.Key.Dataset] = StatusParked
		}
	}
	return rc.accepted(ctx)
}

// accepted asks whether watermarks of an adopted store wait for a person.
func (rc *recovery) accepted(ctx context.Context) (err error) {
	ws, ok := rc.e.cfg.Store.(store.Watermarks)
	switch {
	case !ok:
		return nil
	case rc.job != "":
		rc.rep.Unaccepted, err = ws.Unaccepted(ctx, rc.job)
	default:
		for w, werr := range ws.ListWatermarks(ctx, "") {
			if werr != nil {
				err = werr
				break
			}
			rc.rep.Unaccepted = rc.rep.Unaccepted || w.Unaccepted
		}
	}
	if err != nil {
		return fmt.Errorf("adopted watermarks: %w", err)
	}
	return nil
}

// left describes a live sequence that this recover did not run; gone when it
// has ended meanwhile.
func (rc *recovery) left(ctx context.Context, live commitstep.Live) (res Result, gone bool, err error) {
	res = Result{Key: live.Key, ID: live.ID, Total: live.Steps, Reason: live.Reason, Message: live.Message, Status: StatusWaiting}
	if live.State == commitstep.Parked {
		res.Status = StatusParked
		return res, false, nil
	}
	in, until, held, err := rc.e.cfg.Store.Holder(ctx, live)
	if err != nil {
		return res, false, fmt.Errorf("holder of %s: %w", live.Key, err)
	}
	if held {
		res.Status, res.Holder, res.HeldUntil = StatusBusy, holderText(in), until
		return res, false, nil
	}
	// Another driver may have ended it since it was listed.
	now, err := rc.e.cfg.Store.Find(ctx, live.ID)
	switch {
	case errors.Is(err, commitstep.ErrNotFound), err == nil && now.State == commitstep.Completed:
		return res, true, nil
	case err == nil && rc.o.dryRun:
		res, err = rc.e.foresee(ctx, live)
		return res, false, err
	case errors.Is(err, commitstep.ErrDamaged), errors.Is(err, commitstep.ErrNewerFormat):
		return res, false, nil // quarantined meanwhile, and listed as such
	case err != nil:
		return res, false, fmt.Errorf("look at %s again: %w", live.Key, err)
	case now.State == commitstep.Parked:
		res.Status, res.Reason, res.Message = StatusParked, now.Reason, now.Message
	case res.Message == "":
		res.Message = "it was stored, or given back by its driver, after this recover had claimed what there was; the next one goes on with it"
	}
	return res, false, nil
}

// foresee looks at a pending sequence as a recover would, without a claim.
func (e *Engine) foresee(ctx context.Context, live commitstep.Live) (Result, error) {
	res := Result{Key: live.Key, ID: live.ID, Total: live.Steps, Status: StatusWaiting, Message: "would be completed"}
	insp, err := e.inspect(ctx, live, true, func(s StepView) {
		switch {
		case s.Progress.Done:
			res.Recorded++
		case s.Unsupported != "":
			res.Status, res.Message = StatusUnsupported, s.Unsupported
		case s.LookError != "":
			res.Message = "would wait: " + s.LookError
		case s.Verdict.Outcome == commitstep.Done:
			res.InPlace++
		case s.Verdict.Outcome == commitstep.Conflict:
			res.Status, res.Reason, res.Message = StatusParked, commitstep.ConflictFound, "would be parked: "+s.Verdict.Evidence
		case s.Verdict.Outcome == commitstep.Unknown:
			res.Status, res.Reason, res.Message = StatusParked, commitstep.PublishUnknown, "would be looked at again, then parked: "+s.Verdict.Evidence
		}
		if len(res.Steps) < MaxStepReports {
			did := ""
			if s.Progress.Done {
				did = DidRecorded
			} else if s.Verdict != nil && s.Verdict.Outcome == commitstep.Done {
				did = DidAlready
			}
			res.Steps = append(res.Steps, StepReport{Index: s.Index, Stage: s.Stage, Kind: s.Kind, Summary: s.Summary, Did: did, Attempts: s.Progress.Count})
		}
	})
	if errors.Is(err, commitstep.ErrDamaged) || errors.Is(err, commitstep.ErrNewerFormat) {
		res.Status, res.Message = StatusUnsupported, err.Error()
		return res, nil
	}
	_ = insp
	return res, err
}
