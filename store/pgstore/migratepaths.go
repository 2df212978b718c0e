package pgstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

// pathsVersion is the version of the tables that remembers paths.
const pathsVersion = 2

// rememberPaths notes the paths of what is live, and of what is past as far as
// its history is kept, from the headers: tables of before had no place for them,
// or lost them on the way back. A live sequence that may use paths and does not
// say which is refused; another plan could take its files away.
func (m *Migrator) rememberPaths(ctx context.Context, tx *sql.Tx) error {
	return m.headers(ctx, tx, false, func(h commitstep.Header, live bool) error {
		if h.Used == nil {
			if !live {
				return nil
			}
			silent, err := m.isSilent(ctx, tx, h)
			if silent {
				err = fmt.Errorf("%w: sequence %s of dataset %s is live, and does not say which paths it uses, so that another plan could take its files away; finish it with the program that stored it (`commitstep recover`, `commitstep resolve`), then migrate",
					commitstep.ErrPending, h.ID, h.Key)
			}
			return err
		}
		used := append(append(commitstep.PathDigests{}, h.Used.Sources...), h.Used.Cleanups...)
		if err := m.rememberSome(ctx, tx, h.ID, used, "sequence"); err != nil {
			return err
		}
		return m.rememberSome(ctx, tx, h.ID, h.Used.Above, "below")
	})
}

// allTell refuses the way back while something is live that the way forth would
// refuse: neither this program nor, perhaps, any other could finish it then.
func (m *Migrator) allTell(ctx context.Context, tx *sql.Tx) error {
	return m.headers(ctx, tx, true, func(h commitstep.Header, _ bool) error {
		if h.Used != nil {
			return nil
		}
		silent, err := m.isSilent(ctx, tx, h)
		if silent {
			err = fmt.Errorf("%w: sequence %s of dataset %s is live, and that it uses no paths could not be told any more when the tables are brought to version %d again, which would be refused; finish it first (`commitstep recover`, `commitstep resolve`)",
				commitstep.ErrPending, h.ID, h.Key, pathsVersion)
		}
		return err
	})
}

// mayGoBack looks whether the paths of what is live can be told again later,
// before anything is changed.
func (m *Migrator) mayGoBack(ctx context.Context) error {
	tx, err := m.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // it only looked
	if err := m.idle(ctx, tx); err != nil {
		return err
	}
	return m.allTell(ctx, tx)
}

// headers gives the header of each live sequence, and unless only they are asked
// for, of each past one whose header is kept.
func (m *Migrator) headers(ctx context.Context, tx *sql.Tx, onlyLive bool, give func(h commitstep.Header, live bool) error) error {
	type row struct {
		id           uuid.UUID
		job, dataset string
		header       []byte
		live         bool
	}
	which := `s.id IS NOT NULL OR h.id IS NOT NULL`
	if onlyLive {
		which = `s.state <> 'completed'`
	}
	for after, more := uuid.Nil, true; more; {
		rows, err := tx.QueryContext(ctx, m.fill(`SELECT d.id, coalesce(s.job, h.job), coalesce(s.dataset, h.dataset), d.header, s.id IS NOT NULL AND s.state <> 'completed'
			FROM {s}.documents d LEFT JOIN {s}.sequences s ON s.id = d.id LEFT JOIN {s}.history h ON h.id = d.id
			WHERE d.id > $1 AND (`+which+`) ORDER BY d.id LIMIT 500`), after.String())
		if err != nil {
			return err
		}
		var list []row
		for rows.Next() {
			var r row
			if err := rows.Scan(&r.id, &r.job, &r.dataset, &r.header, &r.live); err != nil {
				rows.Close()
				return err
			}
			list = append(list, r)
		}
		if err := rows.Err(); err != nil {
			return err
		}
		more = len(list) == 500
		for _, r := range list {
			after = r.id
			h, err := openHeader(r.id, commitstep.Key{Job: fromText(r.job), Dataset: fromText(r.dataset)}, r.header)
			if err != nil {
				continue // nobody runs what cannot be read
			}
			if err := give(h, r.live); err != nil {
				return err
			}
		}
	}
	return nil
}

// isSilent reports that a sequence may use paths and says none. Steps that only
// say what was done, watermarks and those of a ledger, use none. Whoever stored
// it may have known of no paths, or known that there are none.
func (m *Migrator) isSilent(ctx context.Context, tx *sql.Tx, h commitstep.Header) (bool, error) {
	if len(h.Cleanup) > 0 {
		return true, nil
	}
	for n := 0; n*store.PageSize < h.Steps; n++ {
		var body []byte
		err := tx.QueryRowContext(ctx, m.fill(`SELECT coalesce(p.body, CASE WHEN $2::int = 0 THEN d.steps END)
			FROM {s}.documents d LEFT JOIN {s}.pages p ON p.sequence = d.id AND p.page = $2::int WHERE d.id = $1`), h.ID.String(), n).Scan(&body)
		if err != nil {
			return false, err
		}
		steps, err := openPage(h.ID, n, n*store.PageSize, body)
		if err != nil {
			return false, nil // nobody runs what cannot be read
		}
		if slices.ContainsFunc(steps, func(s commitstep.Step) bool { return s.Class == commitstep.DataStep }) {
			return true, nil
		}
	}
	return false, nil
}

// fill puts the schema's name into a statement.
func (m *Migrator) fill(text string) string { return strings.ReplaceAll(text, "{s}", quoted(m.schema)) }

func (m *Migrator) rememberSome(ctx context.Context, tx *sql.Tx, id uuid.UUID, paths commitstep.PathDigests, column string) error {
	if len(paths) == 0 {
		return nil
	}
	hashes := make([]string, len(paths))
	for i, p := range paths {
		hashes[i] = uuid.UUID(p).String()
	}
	_, err := tx.ExecContext(ctx, m.fill(`INSERT INTO {s}.paths AS p (hash, `+column+`) SELECT DISTINCT t.hash, $1::uuid FROM unnest($2::uuid[]) AS t(hash)
		ON CONFLICT (hash) DO UPDATE SET `+column+` = EXCLUDED.`+column), id.String(), hashes)
	return err
}
