package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

var (
	_ store.Copier     = (*Store)(nil)
	_ store.Pruner     = (*Store)(nil)
	_ store.Stamper    = (*Store)(nil)
	_ store.StepKeeper = (*Store)(nil)
)

const liveLeaseSQL = `SELECT id, name, host, pid, until FROM {s}.instances WHERE NOT dead AND until > clock_timestamp() ORDER BY until DESC LIMIT 1`

// LiveLease finds a driver instance that is at work.
func (s *Store) LiveLease(ctx context.Context) (in commitstep.Instance, until time.Time, ok bool, err error) {
	err = s.read(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql(liveLeaseSQL)).QueryRow(func(r pgx.Row) (err error) {
			in, err = scanInstance(r, &until)
			ok = err == nil
			if errors.Is(err, pgx.ErrNoRows) {
				err = nil
			}
			return err
		})
	})
	return in, until.UTC(), ok, err
}

// DropSteps removes the kept steps of an abandoned sequence; see
// [store.StepKeeper]. Those that the history shows anyway stay with it.
func (s *Store) DropSteps(ctx context.Context, id uuid.UUID) error {
	e, err := s.LookupHistory(ctx, id)
	if err != nil {
		return err
	}
	if e.State != commitstep.Abandoned {
		return fmt.Errorf("sequence %s is %s, not abandoned: %w", id, e.State, commitstep.ErrNotFound)
	}
	err = s.write(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql(`INSERT INTO {s}.garbage (sequence) VALUES ($1) ON CONFLICT DO NOTHING`), id)
	})
	if err == nil {
		s.collect(ctx)
	}
	return err
}

// unfinished is how the stamp of a store begins into which a copy is on its way.
const unfinished = "unfinished copy of "

func isUnfinished(stamp string) bool { return strings.HasPrefix(stamp, unfinished) }
