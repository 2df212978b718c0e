package boltstore

import (
	"context"
	"fmt"
	"iter"
	"os"
)

// Check reads everything and yields every problem found, in words.
func (s *Store) Check(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		var problems []string
		err := s.write(ctx, func(t *txn) error {
			f, err := os.Open(s.path)
			if err != nil {
				return err
			}
			defer f.Close()
			fi, err := f.Stat()
			if err != nil {
				return err
			}
			x, err := readIndex(f, fi.Size())
			if err != nil {
				problems = append(problems, err.Error())
				return nil
			}
			for _, b := range x.bad {
				problems = append(problems, fmt.Sprintf("%s: %s", b.where(), b.err))
			}
			return nil
		})
		if err != nil {
			yield("", err)
			return
		}
		for _, p := range problems {
			if !yield(p, nil) {
				return
			}
		}
	}
}
