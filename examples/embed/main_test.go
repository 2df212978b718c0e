package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
)

// TestRunsFollowOneAnother: each run publishes the next hundred records, none
// twice, and a leftover of a killed run changes nothing.
func TestRunsFollowOneAnother(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.ErrorIs(t, ingest(t.Context(), dir), boltstore.ErrAbsent, "a store is never made by accident")

	st, err := boltstore.Init(filepath.Join(dir, "commit.db"), nil)
	require.NoError(t, err)
	require.NoError(t, st.Close())
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "task-output"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "task-output", "MyTopic-0-100-200.txt"), []byte("record 1"), 0o644))

	require.NoError(t, ingest(t.Context(), dir))
	require.NoError(t, ingest(t.Context(), dir))

	var got, want strings.Builder
	for _, name := range []string{"MyTopic-0-0-100.txt", "MyTopic-0-100-200.txt"} {
		b, err := os.ReadFile(filepath.Join(dir, "job-output", name))
		require.NoError(t, err)
		got.Write(b)
	}
	for i := range 200 {
		fmt.Fprintf(&want, "record %d\n", i)
	}
	require.Equal(t, want.String(), got.String())
	left, err := os.ReadDir(filepath.Join(dir, "task-output"))
	require.NoError(t, err)
	require.Empty(t, left)
}
