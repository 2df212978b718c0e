package watermark_test

import (
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// BenchmarkFilesMove is one durable move: one file and two directories synced.
func BenchmarkFilesMove(b *testing.B) {
	f := openFiles(b)
	now := commitstep.None()
	for b.Loop() {
		n, _ := now.Int64()
		next := now.Next(n + 1)
		if err := f.CompareAndSet(b.Context(), move(now, next), uuid.Nil); err != nil {
			b.Fatal(err)
		}
		now = next
	}
}

func BenchmarkFilesRead(b *testing.B) {
	f := openFiles(b)
	if err := f.Set(b.Context(), topic, commitstep.None(), commitstep.Int(1)); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := f.Read(b.Context(), topic); err != nil {
			b.Fatal(err)
		}
	}
}
