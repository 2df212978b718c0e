package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Write runs one transaction as the store's own writes do.
func (s *Store) Write(ctx context.Context, fill func(b *pgx.Batch)) error { return s.write(ctx, fill) }
