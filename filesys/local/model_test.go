//go:build linux

package local_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/local"
	"pgregory.net/rapid"
)

// Whatever is done in whatever order, no content is ever lost or doubled but
// by those who ask for exactly that: a list of names and contents is a complete
// model of the file system.
func TestAgainstAModel(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]local.Option{
		"as it is":          nil,
		"without noreplace": {local.WithoutNoReplace()},
		"full disk":         {local.WithFullDisk()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := shm(t) // an fsync a step would cost minutes on a disk
			runs := 0
			rapid.Check(t, func(rt *rapid.T) {
				runs++
				root := filepath.Join(top, fmt.Sprint(runs))
				if err := os.Mkdir(root, 0o755); err != nil {
					rt.Fatal(err)
				}
				f, err := local.New(root, opts...)
				if err != nil {
					rt.Fatal(err)
				}
				defer f.Close()
				againstModel(rt, f, root)
			})
		})
	}
}

func againstModel(rt *rapid.T, f *local.Files, root string) {
	ctx := rt.Context()
	model := map[string]string{} // name: content, different for every write
	var seen []filesys.Info      // files that were looked at, most gone or moved
	name := rapid.SampledFrom([]string{"a", "b", "c", "d"})
	for n := range rapid.IntRange(1, 30).Draw(rt, "steps") {
		x, y := name.Draw(rt, "x"), name.Draw(rt, "y")
		_, has := model[x]
		_, taken := model[y]
		switch op := rapid.SampledFrom([]string{"write", "look", "rename", "remove", "drop", "delete"}).Draw(rt, "op"); op {
		case "write": // a new file, as a writer that replaces its output
			tmp := filepath.Join(filepath.Dir(root), filepath.Base(root)+".tmp")
			model[x] = fmt.Sprint(n)
			if err := errors.Join(os.WriteFile(tmp, []byte(model[x]), 0o644), os.Rename(tmp, filepath.Join(root, x))); err != nil {
				rt.Fatal(err)
			}
		case "delete":
			delete(model, x)
			_ = os.Remove(filepath.Join(root, x))
		case "look":
			info, err := f.Stat(ctx, at(root, x))
			if has != (err == nil) {
				rt.Fatalf("look at %s: %v, the model has it: %v", x, err, has)
			}
			if has {
				seen = append(seen, info)
			}
		case "rename":
			err := f.Rename(ctx, at(root, x), at(root, y))
			switch {
			case x == y:
				if err == nil {
					rt.Fatal("a file was renamed to itself")
				}
			case !has:
				if !errors.Is(err, fs.ErrNotExist) {
					rt.Fatalf("rename of nothing: %v", err)
				}
			case taken:
				if !errors.Is(err, fs.ErrExist) {
					rt.Fatalf("rename over %s: %v", y, err)
				}
			case err != nil:
				rt.Fatal(err)
			default:
				model[y] = model[x]
				delete(model, x)
			}
		case "remove":
			if len(seen) == 0 {
				continue
			}
			want := rapid.SampledFrom(seen).Draw(rt, "want")
			now, err := f.Stat(ctx, want.Path)
			same := err == nil && now.ID == want.ID
			err = f.Remove(ctx, want)
			switch _, there := model[want.Path.Base()]; {
			case same || !there:
				if err != nil {
					rt.Fatalf("remove: %v", err)
				}
				delete(model, want.Path.Base())
			case !errors.Is(err, filesys.ErrChanged):
				rt.Fatalf("remove of another: %v", err)
			}
		case "drop": // no two names are one file here, so nothing goes
			if err := f.DropSecondName(ctx, at(root, x), at(root, y)); err != nil && x != y {
				rt.Fatal(err)
			}
		}
		got := map[string]string{}
		es, err := os.ReadDir(root)
		if err != nil {
			rt.Fatal(err)
		}
		for _, e := range es {
			b, err := os.ReadFile(filepath.Join(root, e.Name()))
			if err != nil {
				rt.Fatal(err)
			}
			got[e.Name()] = string(b)
		}
		if !maps.Equal(got, model) {
			rt.Fatalf("there is %v, the model has %v", got, slices.Sorted(maps.Keys(model)))
		}
	}
}
