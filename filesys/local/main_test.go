//go:build linux

package local_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/internal/testkit"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	testkit.Children(testkit.Roles{"dies": dies, "other-user": otherUser, "rename": renameRole})
	goleak.VerifyTestMain(m)
}

// at is the address of a path below root.
func at(root, name string) commitstep.Address {
	return commitstep.Address{Resource: commitstep.LocalResource, Path: filepath.Join(root, name)}
}

func open(t testing.TB, root string, opts ...local.Option) *local.Files {
	t.Helper()
	f, err := local.New(root, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func stat(t testing.TB, f *local.Files, root, name string) filesys.Info {
	t.Helper()
	info, err := f.Stat(t.Context(), at(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// entries are the names in a directory.
func entries(t testing.TB, dir string) []string {
	t.Helper()
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range es {
		out = append(out, e.Name())
	}
	return out
}

// dies is a child that kills itself at the n-th report of its trace: args are
// the root, what to do, and n.
func dies(c *testkit.Child) int {
	root, n := c.Args[0], c.Args[2]
	left, err := strconv.Atoi(n)
	if err != nil {
		return c.Fail("%v", err)
	}
	foreign := c.Args[1] == "remove-foreign"
	trace := func(op local.Op) {
		if foreign && op.Kind == local.OpRename && !op.After {
			// Another run takes the name between the look and the removal.
			foreign = false
			if err := errors.Join(os.Remove(filepath.Join(root, "in/f")), os.WriteFile(filepath.Join(root, "in/f"), []byte("foreign"), 0o644)); err != nil {
				os.Exit(c.Fail("%v", err))
			}
		}
		if left == 0 {
			testkit.Die()
		}
		left--
	}
	f, err := local.New(root, local.WithTrace(trace), local.WithoutNoReplace())
	if err != nil {
		return c.Fail("%v", err)
	}
	ctx := context.Background()
	switch c.Args[1] {
	case "rename":
		err = f.Rename(ctx, at(root, "in/f"), at(root, "out/f"))
	default:
		var want filesys.Info
		if want, err = f.Stat(ctx, at(root, "in/f")); err == nil {
			err = f.Remove(ctx, want)
		}
		if c.Args[1] == "remove-foreign" && errors.Is(err, filesys.ErrChanged) {
			err = nil
		}
	}
	if err != nil {
		return c.Fail("%v", err)
	}
	return 0
}

// renameRole takes part in a race of processes: root, its number.
func renameRole(c *testkit.Child) int {
	root := c.Args[0]
	var opts []local.Option
	if c.Args[2] == "fallback" {
		opts = append(opts, local.WithoutNoReplace())
	}
	f, err := local.New(root, opts...)
	if err != nil {
		return c.Fail("%v", err)
	}
	c.Say("ready")
	c.Hear()
	switch err := f.Rename(context.Background(), at(root, "from-"+c.Args[1]), at(root, "to")); {
	case err == nil:
		c.Say("result won")
	case errors.Is(err, os.ErrExist):
		c.Say("result lost")
	default:
		return c.Fail("%v", err)
	}
	return 0
}
