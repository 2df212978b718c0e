package pgstore

import (
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/jackc/pgx/v5/pgtype"
)

// attemptColumns are the parameters of attempts that are written together.
type attemptColumns struct {
	sequences                         [][16]byte
	steps, numbers                    []int32
	started, ended                    []pgtype.Timestamptz
	outcomes, classes, texts, drivers []string
}

func (c *attemptColumns) add(k attemptID) {
	c.sequences, c.steps, c.numbers = append(c.sequences, k.sequence), append(c.steps, int32(k.n)), append(c.numbers, int32(k.number))
}

// withAttempts adds the attempts of sequences in ok. An attempt that is there
// already keeps its start; only an outcome changes it.
//
// A recovery begins an attempt for each of its steps, and ends it well: ten
// thousand sequences of five steps have fifty thousand of both. These two are
// written without the columns that say nothing, and the end of an attempt that
// is there is an update, which spares the try of an insert (docs/postgres.md).
func withAttempts(st *statement, attempts map[attemptID]*attemptRow) {
	var begun, well, other attemptColumns
	for k, a := range attempts {
		switch {
		case a.begins():
			begun.add(k)
			begun.started, begun.drivers = append(begun.started, timeOrNull(a.Started)), append(begun.drivers, toText(a.Driver))
		case a.endsWell():
			well.add(k)
			well.ended = append(well.ended, timeOrNull(a.Ended))
		default:
			other.add(k)
			other.started, other.ended = append(other.started, timeOrNull(a.Started)), append(other.ended, timeOrNull(a.Ended))
			other.outcomes, other.classes = append(other.outcomes, toText(a.Outcome)), append(other.classes, toText(a.Class))
			other.texts, other.drivers = append(other.texts, toText(a.Error)), append(other.drivers, toText(a.Driver))
		}
	}
	if len(begun.steps) > 0 {
		st.with("atb", `INSERT INTO {s}.attempts (sequence, step, number, started, driver)
			SELECT t.sequence, t.step, t.number, t.started, t.driver FROM unnest(`+begun.keys(st)+`, `+
			st.arg(begun.started, "timestamptz[]")+`, `+st.arg(begun.drivers, "text[]")+`) AS t(sequence, step, number, started, driver)
			WHERE `+isOK+` ON CONFLICT DO NOTHING`)
	}
	if len(well.steps) > 0 {
		st.with("w", `SELECT * FROM unnest(`+well.keys(st)+`, `+st.arg(well.ended, "timestamptz[]")+`) AS t(sequence, step, number, ended) WHERE `+isOK)
		st.with("atw", `UPDATE {s}.attempts a SET ended = w.ended, outcome = 'done', class = '', error = '' FROM w
			WHERE a.sequence = w.sequence AND a.step = w.step AND a.number = w.number RETURNING a.sequence, a.step, a.number`)
		// One that was never begun here. The conflict is for a row that came after
		// this statement's view.
		st.with("atn", `INSERT INTO {s}.attempts AS a (sequence, step, number, ended, outcome)
			SELECT w.sequence, w.step, w.number, w.ended, 'done' FROM w WHERE ((w.sequence, w.step, w.number) IN (SELECT sequence, step, number FROM atw)) IS NOT TRUE
			ON CONFLICT (sequence, step, number) DO UPDATE SET ended = EXCLUDED.ended, outcome = 'done', class = '', error = ''`)
	}
	if len(other.steps) > 0 {
		st.with("att", `INSERT INTO {s}.attempts AS a (sequence, step, number, started, ended, outcome, class, error, driver)
			SELECT t.sequence, t.step, t.number, t.started, t.ended, t.outcome, t.class, t.error, t.driver FROM unnest(`+other.keys(st)+`, `+
			st.arg(other.started, "timestamptz[]")+`, `+st.arg(other.ended, "timestamptz[]")+`, `+
			st.arg(other.outcomes, "text[]")+`, `+st.arg(other.classes, "text[]")+`, `+st.arg(other.texts, "text[]")+`, `+st.arg(other.drivers, "text[]")+
			`) AS t(sequence, step, number, started, ended, outcome, class, error, driver) WHERE `+isOK+`
			ON CONFLICT (sequence, step, number) DO UPDATE SET ended = EXCLUDED.ended, outcome = EXCLUDED.outcome, class = EXCLUDED.class,
				error = EXCLUDED.error, driver = CASE WHEN EXCLUDED.driver <> '' THEN EXCLUDED.driver ELSE a.driver END
				WHERE EXCLUDED.outcome <> ''`)
	}
}

func (c *attemptColumns) keys(st *statement) string {
	return st.arg(c.sequences, "uuid[]") + `, ` + st.arg(c.steps, "int[]") + `, ` + st.arg(c.numbers, "int[]")
}

// begins: nothing but the start is known.
func (a *attemptRow) begins() bool {
	return a.Outcome == "" && a.Class == "" && a.Error == "" && a.Ended.IsZero()
}

// endsWell: the outcome of an attempt that was begun earlier, and no more.
func (a *attemptRow) endsWell() bool {
	return a.Outcome == commitstep.AttemptDone && a.Class == "" && a.Error == "" && a.Driver == "" && a.Started.IsZero()
}

func timeOrNull(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}
