package pgtarget

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/jackc/pgx/v5"
)

// The statement of a move goes on in the server when the program that sent it dies:
// it may wait for somebody's lock on the row, and take effect once that is given back.
// A look meanwhile would find nothing done, and a sequence could be parked, given up
// or run again although its move still lands. So a move holds an advisory lock until
// it has ended, committed or not, and a look that meets one says so. A move that was
// not sent yet, by a process that was frozen, holds nothing.

// errUnderWay: a move of the watermark is at the server and has not ended.
var errUnderWay = errors.New("a move of it is under way at the server, perhaps of a program that ended, and waits for a lock on the row; see pg_stat_activity, or wait until it has ended")

// lockKey is the advisory lock of a row: those of one database share their numbers
// with whoever else uses some, so it is not a small one.
func (t *Target) lockKey(k commitstep.WatermarkKey) int64 {
	parts := append([]string{"commitstep watermark"}, t.table...)
	if t.c.Job != "" {
		parts = append(parts, k.Job)
	}
	sum := sha256.Sum256([]byte(strings.Join(append(parts, k.Source), "\x00")))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// claimRow queues what goes before a move: it waits, within the time limits of a move,
// for others of the row.
func (t *Target) claimRow(b *pgx.Batch, k commitstep.WatermarkKey) {
	b.Queue("SELECT pg_advisory_xact_lock($1)", t.lockKey(k))
}

// askUnderWay queues what goes before a look at the row: errUnderWay while a move of it
// has not ended. Looks do not hinder each other.
func (t *Target) askUnderWay(b *pgx.Batch, k commitstep.WatermarkKey) {
	b.Queue("SELECT pg_try_advisory_xact_lock_shared($1)", t.lockKey(k)).QueryRow(func(r pgx.Row) error {
		var free bool
		if err := r.Scan(&free); err != nil {
			return err
		}
		if !free {
			return errUnderWay
		}
		return nil
	})
}
