package pgstore

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// pathsVersion is the version of the tables that remembers paths.
const pathsVersion = 2

// rememberPaths notes the paths of what is live, and of what is past as far as
// its history is kept, from the headers: tables of before had no place for them,
// or lost them on the way back. A live sequence whose header does not tell which
// paths it uses is refused; another plan could take its files away.
func (m *Migrator) rememberPaths(ctx context.Context, tx *sql.Tx) error {
	fill := func(text string) string { return strings.ReplaceAll(text, "{s}", quoted(m.schema)) }
	type row struct {
		id           uuid.UUID
		job, dataset string
		header       []byte
		live         bool
	}
	for after, more := uuid.Nil, true; more; {
		rows, err := tx.QueryContext(ctx, fill(`SELECT d.id, coalesce(s.job, h.job), coalesce(s.dataset, h.dataset), d.header, s.id IS NOT NULL AND s.state <> 'completed'
			FROM {s}.documents d LEFT JOIN {s}.sequences s ON s.id = d.id LEFT JOIN {s}.history h ON h.id = d.id
			WHERE d.id > $1 AND (s.id IS NOT NULL OR h.id IS NOT NULL) ORDER BY d.id LIMIT 500`), after.String())
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
			key := commitstep.Key{Job: fromText(r.job), Dataset: fromText(r.dataset)}
			h, err := openHeader(r.id, key, r.header)
			if err != nil {
				continue // nobody runs what cannot be read
			}
			if h.Used == nil {
				if r.live {
					return fmt.Errorf("%w: sequence %s of dataset %s is live, and does not say which paths it uses, so that another plan could take its files away; finish it with the program that stored it (`commitstep recover`, `commitstep resolve`), then migrate",
						commitstep.ErrPending, r.id, key)
				}
				continue
			}
			used := append(append(commitstep.PathDigests{}, h.Used.Sources...), h.Used.Cleanups...)
			if err := m.rememberSome(ctx, tx, fill, r.id, used, "sequence"); err != nil {
				return err
			}
			if err := m.rememberSome(ctx, tx, fill, r.id, h.Used.Above, "below"); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *Migrator) rememberSome(ctx context.Context, tx *sql.Tx, fill func(string) string, id uuid.UUID, paths commitstep.PathDigests, column string) error {
	if len(paths) == 0 {
		return nil
	}
	hashes := make([]string, len(paths))
	for i, p := range paths {
		hashes[i] = uuid.UUID(p).String()
	}
	_, err := tx.ExecContext(ctx, fill(`INSERT INTO {s}.paths AS p (hash, `+column+`) SELECT DISTINCT t.hash, $1::uuid FROM unnest($2::uuid[]) AS t(hash)
		ON CONFLICT (hash) DO UPDATE SET `+column+` = EXCLUDED.`+column), id.String(), hashes)
	return err
}
