package pgstore

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/internal/records"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// statement is one SQL statement of several parts (WITH …) while it is built.
// The same parts give the same text, so that a connection describes it once.
type statement struct {
	parts []string
	args  []any
}

// arg adds a parameter and gives its name in the text.
func (st *statement) arg(v any, typ string) string {
	st.args = append(st.args, v)
	return "$" + strconv.Itoa(len(st.args)) + "::" + typ
}

// with adds a part.
func (st *statement) with(name, sql string) {
	st.parts = append(st.parts, name+" AS ("+sql+")")
}

func (st *statement) text(final string) string {
	return "WITH " + strings.Join(st.parts, ",\n") + "\n" + final
}

// queueWrite queues the statement that carries out operations of one kind, one
// for each sequence. Which of them it did is known by the ids it returns: a
// sequence whose claim, state or watermarks are not as expected is passed over
// as a whole.
func (s *Store) queueWrite(b *pgx.Batch, kind opKind, list []*group) {
	var st statement
	var ids [][16]byte
	var owners [][16]byte
	var epochs []int64
	byID := make(map[uuid.UUID]*group, len(list))
	w := newWrites()
	for _, g := range list {
		byID[g.fence.ID] = g
		ids, owners = append(ids, g.fence.ID), append(owners, g.fence.Owner)
		epochs = append(epochs, int64(g.fence.Epoch))
		w.add(g.fence, g.serial, g.events, g.at, kind != opComplete || g.cleaning)
	}
	fences := st.arg(ids, "uuid[]") + `, ` + st.arg(epochs, "bigint[]") + `, ` + st.arg(owners, "uuid[]")
	mayMove := ""
	if len(w.moves) > 0 {
		s.withMoves(&st, w.moves)
		mayMove = " AND f.id NOT IN (SELECT id FROM bad)"
	}
	match := `s.id = f.id AND s.epoch = f.epoch AND (s.owner = f.owner OR f.owner = '00000000-0000-0000-0000-000000000000')` + mayMove
	switch kind {
	case opRecord:
		msg := make([]*string, len(list))
		for i, g := range list {
			if m, ok := w.messages[g.fence.ID]; ok {
				msg[i] = &m
			}
		}
		st.with("f", `SELECT * FROM unnest(`+fences+`, `+st.arg(msg, "text[]")+`) AS t(id, epoch, owner, message)`)
		st.with("ok", `SELECT s.id, f.message FROM {s}.sequences s JOIN f ON `+match+` WHERE s.state <> 'completed' ORDER BY s.id FOR NO KEY UPDATE OF s`)
		if len(w.messages) > 0 {
			st.with("msg", `UPDATE {s}.sequences s SET message = ok.message, version = version + 1, updated = now() FROM ok WHERE s.id = ok.id AND s.message <> ok.message`)
		}
	case opPark:
		s.withPark(&st, fences, match, list, w)
	case opComplete:
		s.withComplete(&st, fences, match, list)
	case opCleaned:
		reports := make([]string, len(list))
		for i, g := range list {
			reports[i] = toText(g.report)
		}
		st.with("f", `SELECT * FROM unnest(`+fences+`, `+st.arg(reports, "text[]")+`) AS t(id, epoch, owner, report)`)
		st.with("ok", `DELETE FROM {s}.sequences s USING f WHERE `+match+` AND s.state = 'completed' RETURNING s.id, s.long, f.report`)
		st.with("rep", `INSERT INTO {s}.cleanups (sequence, at, report) SELECT id, now(), report FROM ok WHERE report <> '' ON CONFLICT DO NOTHING`)
		st.with("grb", `INSERT INTO {s}.garbage (sequence) SELECT id FROM ok ON CONFLICT DO NOTHING`)
	case opTold:
		st.with("f", `SELECT * FROM unnest(`+fences+`) AS t(id, epoch, owner)`)
		st.with("upd", `UPDATE {s}.sequences s SET park_told = true FROM f WHERE `+match+` AND s.state = 'parked'`)
		st.with("ok", `SELECT s.id FROM {s}.sequences s JOIN f ON `+match)
	case opRelease:
		st.with("f", `SELECT * FROM unnest(`+fences+`) AS t(id, epoch, owner)`)
		st.with("ok", `UPDATE {s}.sequences s SET held = false FROM f WHERE `+match+` RETURNING s.id`)
	}
	check := ""
	if len(w.moves) > 0 {
		st.with("wm", `INSERT INTO {s}.watermarks AS w (hash, job, source, value, was, token, sequence, set_at, record)
			SELECT m.hash, m.job, m.source, m.value, m.was, m.token, m.id, m.at, m.record FROM m JOIN ok ON ok.id = m.id WHERE NOT m.ours
			ON CONFLICT (hash) DO UPDATE SET value = EXCLUDED.value, was = EXCLUDED.was, token = EXCLUDED.token, sequence = EXCLUDED.sequence,
				set_at = EXCLUDED.set_at, record = EXCLUDED.record WHERE w.value = EXCLUDED.was RETURNING w.hash`)
		// A watermark that changed between the look and the write fails the
		// whole transaction, which then looks again.
		check = `, 1 / (CASE WHEN (SELECT count(*) FROM wm) = (SELECT count(*) FROM m JOIN ok ON ok.id = m.id WHERE NOT m.ours) THEN 1 ELSE 0 END)`
	}
	withProgress(&st, w)
	b.Queue(s.sql(st.text(`SELECT ok.id`+check+` FROM ok`)), st.args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var id uuid.UUID
			dest := []any{&id}
			if check != "" {
				dest = append(dest, nil)
			}
			if err := rows.Scan(dest...); err != nil {
				return err
			}
			for _, o := range byID[id].ops {
				o.ok = true
			}
		}
		return rows.Err()
	})
}

// withMoves judges watermark moves: ours are those that were made before.
func (s *Store) withMoves(st *statement, moves []moveRow) {
	var seqs, hashes, tokens [][16]byte
	var jobs, sources, values []string
	var was []*string
	var at []time.Time
	var bodies [][]byte
	for _, m := range moves {
		h := watermarkHash(m.move.WatermarkKey)
		v := commitstep.WatermarkValue{WatermarkKey: m.move.WatermarkKey, Watermark: m.move.To, Token: m.move.Token, Sequence: m.sequence, SetAt: m.at}
		seqs, hashes, tokens = append(seqs, m.sequence), append(hashes, h), append(tokens, m.move.Token)
		jobs, sources = append(jobs, toText(m.move.Job)), append(sources, toText(m.move.Source))
		values, was, at = append(values, *watermarkText(m.move.To)), append(was, watermarkText(m.move.From)), append(at, m.at)
		bodies = append(bodies, sealWatermark(v))
	}
	st.with("m", `SELECT t.*, coalesce(w.token = t.token AND t.token <> '00000000-0000-0000-0000-000000000000', false) AS ours,
			w.value IS DISTINCT FROM t.was AS other
		FROM unnest(`+st.arg(seqs, "uuid[]")+`, `+st.arg(hashes, "uuid[]")+`, `+st.arg(jobs, "text[]")+`, `+st.arg(sources, "text[]")+`, `+
		st.arg(was, "text[]")+`, `+st.arg(values, "text[]")+`, `+st.arg(tokens, "uuid[]")+`, `+st.arg(at, "timestamptz[]")+`, `+st.arg(bodies, "bytea[]")+
		`) AS t(id, hash, job, source, was, value, token, at, record) LEFT JOIN {s}.watermarks w ON w.hash = t.hash`)
	st.with("bad", `SELECT id FROM m WHERE other AND NOT ours OR EXISTS (SELECT FROM {s}.store WHERE sealed_for <> '')`)
}

func (s *Store) withPark(st *statement, fences, match string, list []*group, w *writes) {
	var reasons []string
	var steps []int32
	var msgs []*string
	for _, g := range list {
		reasons, steps = append(reasons, string(g.parking.Reason)), append(steps, int32(g.parking.Step))
		var msg *string
		if m, ok := w.messages[g.fence.ID]; ok {
			msg = &m
		}
		if g.parking.Message != "" {
			m := toText(g.parking.Message)
			msg = &m
		}
		msgs = append(msgs, msg)
	}
	st.with("f", `SELECT * FROM unnest(`+fences+`, `+st.arg(reasons, "text[]")+`, `+st.arg(steps, "int[]")+`, `+st.arg(msgs, "text[]")+`) AS t(id, epoch, owner, reason, step, message)`)
	// Repeated after a lost answer it changes nothing, not even the version.
	st.with("ok", `UPDATE {s}.sequences s SET state = 'parked', reason = f.reason, park_step = f.step, message = coalesce(f.message, s.message),
		park_told = false, held = false, version = s.version + 1, updated = now()
		FROM f WHERE `+match+` AND s.state <> 'completed'
			AND (s.state, s.reason, s.park_step, s.message, s.held) IS DISTINCT FROM ('parked', f.reason, f.step, coalesce(f.message, s.message), false)
		RETURNING s.id`)
}

// sealHistory seals what a history record holds beyond its columns and the
// document.
func sealHistory(id uuid.UUID, t records.HistoryTail) []byte {
	b, err := records.AppendHistoryTail(append(make([]byte, 0, 256), '{'), t)
	if err != nil { // of a year that no clock shows
		b = []byte("null")
	}
	return commitstep.Seal(commitstep.RecordHistory, id[:], b)
}

const historyColumns = `(id, job, dataset, plan_id, state, created, ended, steps, stages, epoch, message, record)`

func (s *Store) withComplete(st *statement, fences, match string, list []*group) {
	var cleaning, sweep []bool
	var tails [][]byte
	var at []time.Time
	for _, g := range list {
		cleaning, sweep, at = append(cleaning, g.cleaning), append(sweep, g.sweep), append(at, g.at)
		tails = append(tails, sealHistory(g.fence.ID, records.HistoryTail{State: commitstep.Completed, Ended: g.at, Epoch: g.fence.Epoch, Notes: g.notes}))
	}
	st.with("f", `SELECT * FROM unnest(`+fences+`, `+st.arg(cleaning, "bool[]")+`, `+st.arg(sweep, "bool[]")+`, `+st.arg(at, "timestamptz[]")+`, `+st.arg(tails, "bytea[]")+`) AS t(id, epoch, owner, cleaning, sweep, at, record)`)
	const back = ` RETURNING s.id, s.job, s.dataset, s.plan_id, s.plan_hash, s.plan_ref, s.created, s.steps, s.stages, s.epoch, s.locks, s.long AND NOT f.cleaning AS long, f.sweep AND NOT f.cleaning AS sweep, f.at, f.record`
	st.with("ended", `DELETE FROM {s}.sequences s USING f WHERE `+match+` AND s.state = 'pending' AND NOT f.cleaning`+back)
	ok := `SELECT * FROM ended`
	if slices.Contains(cleaning, true) {
		st.with("kept", `UPDATE {s}.sequences s SET state = 'completed', slot = s.id, reason = '', park_step = -1, version = s.version + 1, updated = now()
			FROM f WHERE `+match+` AND s.state = 'pending' AND f.cleaning`+back)
		ok += ` UNION ALL SELECT * FROM kept`
	}
	st.with("ok", ok)
	st.with("hist", `INSERT INTO {s}.history `+historyColumns+`
		SELECT id, job, dataset, plan_id, 'completed', created, at, steps, stages, epoch, '', record FROM ok`)
	st.with("lk", `DELETE FROM {s}.locks l USING (SELECT unnest(locks) AS hash FROM ok) k WHERE l.hash = k.hash`)
	st.with("ids", `INSERT INTO {s}.plan_ids (hash, job, dataset, plan_id, plan_hash, sequence, state)
		SELECT plan_ref, job, dataset, plan_id, plan_hash, id, 'completed' FROM ok WHERE plan_ref IS NOT NULL`)
	if slices.Contains(sweep, true) {
		st.with("swp", `DELETE FROM {s}.progress p USING ok WHERE ok.sweep AND NOT ok.long AND p.sequence = ok.id`)
		st.with("swn", `DELETE FROM {s}.step_notes n USING ok WHERE ok.sweep AND NOT ok.long AND n.sequence = ok.id`)
	}
	st.with("grb", `INSERT INTO {s}.garbage (sequence) SELECT id FROM ok WHERE long ON CONFLICT DO NOTHING`)
}

// isOK keeps the rows t of sequences in ok. As a condition, and not a join, it is
// answered from a hash table.
const isOK = `(t.sequence IN (SELECT id FROM ok)) IS TRUE`

// withProgress adds what the events say of steps, for the sequences in ok.
func withProgress(st *statement, w *writes) {
	if len(w.marks) > 0 {
		var seqs [][16]byte
		var pages []int32
		var bits []pgtype.Bits
		for k, v := range w.marks {
			seqs, pages = append(seqs, k.sequence), append(pages, int32(k.n))
			bits = append(bits, pgtype.Bits{Bytes: v[:], Len: store.PageSize, Valid: true})
		}
		st.with("mk", `INSERT INTO {s}.progress AS p (sequence, page, done)
			SELECT t.sequence, t.page, t.done FROM unnest(`+st.arg(seqs, "uuid[]")+`, `+st.arg(pages, "int[]")+`, `+st.arg(bits, "bit(512)[]")+`) AS t(sequence, page, done)
			WHERE `+isOK+` ON CONFLICT (sequence, page) DO UPDATE SET done = p.done | EXCLUDED.done`)
	}
	withAttempts(st, w.attempts)
	if len(w.notes) > 0 {
		var seqs [][16]byte
		var steps []int32
		var notes, marks [][]byte
		var epochs, serials []int64
		for k, n := range w.notes {
			seqs, steps = append(seqs, k.sequence), append(steps, int32(k.n))
			notes, marks = append(notes, n.note), append(marks, n.noReturn)
			epochs, serials = append(epochs, int64(n.epoch)), append(serials, n.serial)
		}
		// A write that was sent again may come once more, late: it finds its like, or
		// a newer one.
		st.with("nt", `INSERT INTO {s}.step_notes AS n (sequence, step, note, no_return, epoch, serial)
			SELECT t.sequence, t.step, t.note, t.no_return, t.epoch, t.serial FROM unnest(`+st.arg(seqs, "uuid[]")+`, `+st.arg(steps, "int[]")+`, `+st.arg(notes, "bytea[]")+`, `+st.arg(marks, "bytea[]")+`, `+
			st.arg(epochs, "bigint[]")+`, `+st.arg(serials, "bigint[]")+`) AS t(sequence, step, note, no_return, epoch, serial) WHERE `+isOK+`
			ON CONFLICT (sequence, step) DO UPDATE SET note = coalesce(EXCLUDED.note, n.note), no_return = coalesce(EXCLUDED.no_return, n.no_return),
				epoch = EXCLUDED.epoch, serial = EXCLUDED.serial WHERE (n.epoch, n.serial) <= (EXCLUDED.epoch, EXCLUDED.serial)`)
	}
}
