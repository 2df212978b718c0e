package fstest

import (
	"fmt"
	"testing"
)

// Benchmark prints comparable numbers for the calls that a published file
// costs. open is as in [Exercise].
func Benchmark(b *testing.B, open func(t testing.TB) Subject) {
	one := func(name string, fn func(s *subject, n int) error) {
		b.Run(name, func(b *testing.B) {
			s := newSubject(b, open(b))
			s.write("in/f-0", "x")
			s.mkdir("out")
			for n := 0; b.Loop(); n++ {
				if err := fn(s, n); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	one("Stat", func(s *subject, _ int) error {
		_, err := s.FS.Stat(b.Context(), s.at("in/f-0"))
		return err
	})
	one("Rename", func(s *subject, n int) error {
		return s.FS.Rename(b.Context(), s.at(fmt.Sprintf("in/f-%d", n)), s.at(fmt.Sprintf("in/f-%d", n+1)))
	})
	one("RenameAndSync", func(s *subject, n int) error {
		if err := s.FS.Rename(b.Context(), s.at(fmt.Sprintf("in/f-%d", n)), s.at(fmt.Sprintf("in/f-%d", n+1))); err != nil {
			return err
		}
		return s.FS.SyncDir(b.Context(), s.at("in"))
	})
	one("SyncDirUnchanged", func(s *subject, _ int) error { return s.FS.SyncDir(b.Context(), s.at("out")) })
	one("WriteAndRemove", func(s *subject, _ int) error {
		if err := s.Write(s.at("out/g"), "x"); err != nil {
			return err
		}
		info, err := s.FS.Stat(b.Context(), s.at("out/g"))
		if err != nil {
			return err
		}
		return s.FS.Remove(b.Context(), info)
	})
	b.Run("List1000", func(b *testing.B) {
		s := newSubject(b, open(b))
		for i := range 1000 {
			s.write(fmt.Sprintf("d/%d", i), "")
		}
		for b.Loop() {
			if n := len(s.list(s.at("d"))); n != 1000 {
				b.Fatalf("%d entries", n)
			}
		}
	})
}
