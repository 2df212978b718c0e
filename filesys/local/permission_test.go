//go:build linux

package local_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/internal/testkit"
)

// A user without permission gets a definite no that is not hopeless, since
// people repair permissions; and a directory that may be written and not read
// can be synced all the same.
func TestPermissions(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, dir := range []string{"closed", "blind", "open"} {
		write(t, filepath.Join(root, dir, "f"), "x")
	}
	for p, mode := range map[string]os.FileMode{filepath.Dir(root): 0o755, root: 0o755, root + "/closed": 0o555, root + "/blind": 0o333, root + "/open": 0o777} {
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = errors.Join(os.Chmod(root+"/closed", 0o755), os.Chmod(root+"/blind", 0o755)) })
	if os.Getuid() != 0 {
		// Already somebody who is bound by permissions.
		if err := withoutPermission(root); err != nil {
			t.Fatal(err)
		}
	} else {
		p := testkit.StartWith(t, "other-user", []string{root}, testkit.AsUser(65534, 65534))
		if code, _ := p.Exit(); code != 0 {
			t.Fatal(p.Output())
		}
	}
	for _, dir := range []string{"closed", "blind", "open"} {
		if dir == "blind" {
			dir = "open/from-blind"
		} else {
			dir += "/f"
		}
		if got := read(t, filepath.Join(root, dir)); got != "x" {
			t.Errorf("%s holds %q", dir, got)
		}
	}
}

func otherUser(c *testkit.Child) int {
	if err := withoutPermission(c.Args[0]); err != nil {
		return c.Fail("%v", err)
	}
	return 0
}

func withoutPermission(root string) error {
	ctx := context.Background()
	var kinds []local.OpKind
	f, err := local.New(root, local.WithTrace(func(op local.Op) {
		if op.After {
			kinds = append(kinds, op.Kind)
		}
	}))
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat(ctx, at(root, "closed/f"))
	if err != nil {
		return err
	}
	for what, err := range map[string]error{
		"rename from":   f.Rename(ctx, at(root, "closed/f"), at(root, "open/g")),
		"rename to":     f.Rename(ctx, at(root, "open/f"), at(root, "closed/g")),
		"mkdir":         f.MkdirAll(ctx, at(root, "closed/a/b")),
		"remove":        f.Remove(ctx, info),
		"attributes of": f.SetAttributes(ctx, at(root, "open/f"), filesys.Attributes{Owner: "1"}),
	} {
		if !errors.Is(err, fs.ErrPermission) || commitstep.ClassOf(err) != commitstep.ClassRefused || commitstep.IsPermanent(err) {
			return fmt.Errorf("%s: %w (%s)", what, err, commitstep.ClassOf(err))
		}
	}
	for what, err := range map[string]error{
		"plan from": f.CheckMove(ctx, at(root, "closed/f"), at(root, "open/g")),
		"plan to":   f.CheckMove(ctx, at(root, "open/f"), at(root, "closed/no/such/dir/g")),
	} {
		if !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	if err := f.CheckMove(ctx, at(root, "blind/f"), at(root, "open/from-blind")); err != nil {
		return fmt.Errorf("plan of what is allowed: %w", err)
	}
	if err := f.Rename(ctx, at(root, "blind/f"), at(root, "open/from-blind")); err != nil {
		return fmt.Errorf("rename from a directory that cannot be read: %w", err)
	}
	kinds = nil
	if err := f.SyncDir(ctx, at(root, "blind")); err != nil {
		return fmt.Errorf("sync of a directory that cannot be read: %w", err)
	}
	if !slices.Contains(kinds, local.OpSyncFS) {
		return fmt.Errorf("the sync did only %v", kinds)
	}
	return nil
}
