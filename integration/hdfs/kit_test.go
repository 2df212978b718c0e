package hdfs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"testing"

	clib "github.com/colinmarc/hdfs/v2"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys/fstest"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/steptest"
	"github.com/stretchr/testify/require"
)

// snapshot describes everything below a directory. Content is told by id,
// length and time: nobody writes into a file here.
func snapshot(cl *clib.Client, dir string) (string, error) {
	out := ""
	var walk func(string) error
	walk = func(dir string) error {
		list, err := cl.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, fi := range list {
			s := fi.Sys().(*clib.FileStatus)
			p := path.Join(dir, fi.Name())
			out += fmt.Sprintf("%s %d %d %d %o %s %s\n", p, s.GetFileId(), s.GetLength(), s.GetModificationTime(), s.GetPermission().GetPerm(), s.GetOwner(), s.GetGroup())
			if fi.IsDir() {
				if err := walk(p); err != nil {
					return err
				}
			}
		}
		return nil
	}
	err := walk(dir)
	return out, err
}

// TestKit puts fs.rename through the kit for steps on a real name node.
func TestKit(t *testing.T) {
	t.Parallel()
	shapes := map[string]struct {
		files  map[string]string // relative to the staged path
		inside string
		opts   []fsrename.Option
	}{
		"file":      {map[string]string{"": "ours"}, "", []fsrename.Option{fsrename.Length(4), fsrename.Mode("0600"), fsrename.Group("alice")}},
		"directory": {map[string]string{"/a/1.avro": "ours", "/2.avro": "more"}, "/a/1.avro", []fsrename.Option{fsrename.Length(8)}},
	}
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachTransport(t, func(t *testing.T, c *hadoopkit.Cluster, transport string) {
				steptest.Run(t, steptest.Case{New: func(t testing.TB) steptest.World {
					cl := c.Client(t, "root")
					w := &world{where: whereIs(c, transport), client: cl, dir: hadoopkit.TempDir(t, cl)}
					const staged, published = "task-output/run-1/data", "job-output/MyTopic/2015-12-09/1"
					stage := func() error {
						for name, content := range shape.files {
							if err := hadoopkit.Put(cl, w.dir+"/"+staged+name, content); err != nil {
								return err
							}
						}
						return nil
					}
					require.NoError(t, stage())
					ours := hadoopkit.FileID(cl, w.dir+"/"+staged+shape.inside)
					at := func(p string) string { return w.dir + "/" + p }
					put := func(name, content string) func() error {
						return func() error { return hadoopkit.Put(cl, at(name), content) }
					}
					points := &steptest.Points{}
					return steptest.World{
						Spec: fsrename.Move(w.address(at(staged)), w.address(at(published)), shape.opts...),
						Kinds: func() *commitstep.Registry {
							f, err := w.where.open(ordinary, "root")
							require.NoError(t, err)
							t.Cleanup(func() { _ = f.Close() })
							return commitstep.NewRegistry(fsrename.Kind(fstest.Hooked(f, func(op string, a commitstep.Address, do func() error) error {
								return points.Do(op+" "+a.Base(), do)
							})))
						},
						Snapshot: func() (string, error) { return snapshot(cl, w.dir) },
						Effects: func() (int, error) {
							if hadoopkit.FileID(cl, at(published)+shape.inside) != ours || hadoopkit.FileID(cl, at(staged)) != 0 {
								return 0, nil
							}
							return 1, nil
						},
						Points: points,
						Foreign: map[string]func() error{
							"a file of equal length":             put(published, "ther"),
							"an equal file":                      put(published, "ours"),
							"an empty file":                      put(published, ""),
							"an empty directory":                 func() error { return cl.MkdirAll(at(published), 0o755) },
							"a full directory":                   put(published+"/x", "ours"),
							"a file where the directory must be": put("job-output", "x"),
						},
						MovedOn: func() error {
							// Consumed, and the next run stages under the same name.
							for _, p := range []string{published, staged} {
								if err := cl.RemoveAll(at(p)); err != nil && !errors.Is(err, fs.ErrNotExist) {
									return err
								}
							}
							return stage()
						},
						SharesEffect: true,
					}
				}})
			})
		})
	}
}
