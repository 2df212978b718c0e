package store

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// ErrNotEmpty: a store that something is to be copied into holds something
// else already.
var ErrNotEmpty = errors.New("the store is not empty")

// ErrUnfinished: a copy into the store has not ended, so the store runs nothing
// until the same copy is repeated. It always comes with commitstep.ErrStamped.
var ErrUnfinished = errors.New("a copy into it has not ended")

// Pruner removes old history.
type Pruner interface {
	// PruneHistory removes what is known of sequences that ended longer ago
	// than olderThan, in bounded steps, and returns how many. Live, parked and
	// cleaning sequences are never touched; plan ids and the audit are kept for
	// ever, and so is what a PathKeeper remembers.
	PruneHistory(ctx context.Context, olderThan time.Duration) (int, error)
}

// Stamper is a store that can be told by hand that it is a copy, when it is one
// that nothing in it tells: restored from a copy of the disk, say.
type Stamper interface {
	// Stamp has the store run nothing until Adopt, which then is the only way
	// on. The person's reason becomes Info.Stamped; stamping again replaces it.
	// commitstep.ErrBusy while a driver is at work in the store, ErrSealed when
	// the store was copied to another: it runs nothing, and is never adopted.
	Stamp(ctx context.Context, p Person) error
}

// Copier is a store that can be copied into another one of any kind.
type Copier interface {
	// Seal refuses all puts and watermark writes from now on, for ever, and
	// names target. Sealing again for the same target is success; for another
	// one it is ErrSealed. What comes later, and what is made of the store, a
	// backup or a restored dump, keeps the seal. ErrStamped for a store that
	// waits to be adopted.
	Seal(ctx context.Context, target string, p Person) error
	// LiveLease finds a driver instance that is at work.
	LiveLease(ctx context.Context) (in commitstep.Instance, until time.Time, ok bool, err error)
	// Export yields all that the store holds: first the store itself, then the
	// rest, each sequence followed by its pages in order. Damage ends it with
	// an error.
	Export(ctx context.Context) iter.Seq2[CopyItem, error]
	// Import fills an empty store. Until it has returned nil the store runs
	// nothing, and after an error or a crash it may be repeated. done is true,
	// and nothing is changed, when this very copy was imported before;
	// ErrNotEmpty when the store holds anything else.
	Import(ctx context.Context, items iter.Seq2[CopyItem, error]) (done bool, err error)
}

// CopyItem is one thing that a store holds. Exactly one field is set.
type CopyItem struct {
	Store     *CopyStore
	Sequence  *commitstep.Live
	Page      *CopyPage
	Plan      *PlanRecord
	Watermark *commitstep.WatermarkValue
	Accepted  *CopyAccepted
	History   *HistoryEntry
	Attempts  *CopyAttempts
	Audit     *AuditEntry
	Path      *CopyPath
}

// CopyStore is the store itself.
type CopyStore struct {
	ID        uuid.UUID
	Location  string
	Adoptions int
}

// CopyPage is one page of the sequence, live or abandoned, that came before.
type CopyPage struct {
	Sequence uuid.UUID
	Page
}

// CopyAttempts are the attempts at steps of a sequence with an outcome, for
// stores that keep them: those of one page that no CopyPage says. It comes after
// the sequence's history and pages, in the order of pages.
type CopyAttempts struct {
	Sequence uuid.UUID
	Number   int // of the page
	// Steps, by their place in the page. Only Attempts, all of them, Count and
	// Failed are set.
	Steps map[int]commitstep.Progress
}

// CopyAccepted says that a job's watermarks were accepted after an adoption.
type CopyAccepted struct {
	Job      string
	Adoption int
	At       time.Time
}

// CopyReport says what Copy did.
type CopyReport struct {
	// Already: it was copied before; nothing was changed.
	Already    bool `json:"already,omitempty"`
	Sequences  int  `json:"sequences"`
	Watermarks int  `json:"watermarks"`
	History    int  `json:"history"`
	Audit      int  `json:"audit"`
}

// Copy moves everything from one store into another, empty one, which target
// names. Before it changes anything in the first, all of that was read, and the
// second took the copy on, which runs nothing from then on until it is whole.
// Then the first is sealed before it is read once more, so that the two never
// both go on; a failed copy may be repeated, with the same target only.
// commitstep.ErrBusy while a driver is at work in the first.
func Copy(ctx context.Context, from, to interface {
	Store
	Copier
}, target string, p Person) (CopyReport, error) {
	var rep CopyReport
	a, b := from.Info(), to.Info()
	switch {
	case a.ID == b.ID:
		return rep, fmt.Errorf("copy %s to %s: they are the same store", a.Location, b.Location)
	case a.Unfinished:
		return rep, fmt.Errorf("copy %s: %w: %w: it is an %s", a.Location, commitstep.ErrStamped, ErrUnfinished, a.Stamped)
	case a.Stamped != "" && a.SealedFor == "":
		// A copy of a sealed store is as good as the store: nothing changed since.
		return rep, fmt.Errorf("copy %s: %w (%s); adopt it first", a.Location, commitstep.ErrStamped, a.Stamped)
	case b.SealedFor != "":
		return rep, fmt.Errorf("copy to %s: %w: it was copied to %s itself", b.Location, commitstep.ErrSealed, b.SealedFor)
	case a.SealedFor != "" && a.SealedFor != target:
		// Before the second is touched.
		if err := from.Seal(ctx, target, p); err != nil {
			return rep, err
		}
	}
	if q, err := from.Quarantine(ctx); err != nil {
		return rep, err
	} else if len(q) > 0 {
		return rep, fmt.Errorf("copy %s: %w: %d records cannot be read; see `commitstep quarantine list`", a.Location, commitstep.ErrDamaged, len(q))
	}
	if err := idle(ctx, from); err != nil {
		return rep, err
	}
	// A seal stays for ever, so what cannot be read must be found before it.
	if a.SealedFor == "" {
		for _, err := range from.Export(ctx) {
			if err != nil {
				return rep, fmt.Errorf("copy %s: %w", a.Location, err)
			}
		}
	}
	seal := func() error {
		if err := from.Seal(ctx, target, p); err != nil {
			return err
		}
		// Whoever came in between has its lease now, and the seal before its eyes.
		return idle(ctx, from)
	}
	var err error
	rep.Already, err = to.Import(ctx, func(yield func(CopyItem, error) bool) {
		rep = CopyReport{}
		sealed := false
		for it, err := range from.Export(ctx) {
			switch {
			case it.Sequence != nil:
				rep.Sequences++
			case it.Watermark != nil:
				rep.Watermarks++
			case it.History != nil:
				rep.History++
			case it.Audit != nil:
				rep.Audit++
			}
			if !yield(it, err) {
				return
			}
			if sealed || err != nil {
				continue
			}
			// The second has taken the copy on, and nothing but what the first one
			// is was read yet.
			if err := seal(); err != nil {
				yield(CopyItem{}, err)
				return
			}
			sealed = true
		}
	})
	if err != nil {
		return rep, fmt.Errorf("copy %s to %s: %w", a.Location, b.Location, err)
	}
	if rep.Already {
		return CopyReport{Already: true}, seal()
	}
	return rep, nil
}

// idle refuses while a driver is at work.
func idle(ctx context.Context, c Copier) error {
	in, until, ok, err := c.LiveLease(ctx)
	if err != nil {
		return err
	}
	if ok {
		return AtWork("copy", in, until)
	}
	return nil
}

// AtWork is the refusal to do something to a whole store while a driver is at
// work; what says what was not done. It matches commitstep.ErrBusy, whose text
// speaks of one sequence.
func AtWork(what string, in commitstep.Instance, until time.Time) error {
	return atWork(fmt.Sprintf("%s: %s on %s (pid %d) holds a lease until %s; stop all drivers, or wait for the end of a lease whose driver is gone, and run it again",
		what, in.Name, in.Host, in.PID, until.UTC().Format(time.RFC3339)))
}

type atWork string

func (e atWork) Error() string { return string(e) }

func (e atWork) Is(target error) bool { return target == commitstep.ErrBusy }
