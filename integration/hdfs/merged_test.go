package hdfs_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/commitstep/engine/cli"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/hdfs"
	"github.com/commitstep/engine/filesys/webhdfs"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/stretchr/testify/require"
)

// TestNameServicesAreNotMerged: addresses of two clusters under one name. The
// second one has files of the same paths, and nothing may be done to them when the
// first one dies.
func TestNameServicesAreNotMerged(t *testing.T) {
	t.Parallel()
	ours, other := hadoopkit.Private(t, hadoopkit.Options{}), hadoopkit.Shared(t)
	theirs := other.Client(t, "root")
	dir := hadoopkit.TempDir(t, theirs)
	for _, c := range []*hadoopkit.Cluster{ours, other} {
		cl := c.Client(t, "root")
		require.NoError(t, cl.MkdirAll(dir, 0o777))
		require.NoError(t, hadoopkit.Put(cl, dir+"/a", "x"))
	}
	open := map[string]func(jmx ...string) filesys.FS{
		"hdfs": func(jmx ...string) filesys.FS {
			f, err := hdfs.New(hdfs.Options{Name: "m", Addresses: []string{ours.RPC(), other.RPC()}, HTTPAddresses: jmx, User: "root", CallTimeout: 20 * time.Second, Wait: 10 * time.Millisecond})
			require.NoError(t, err)
			t.Cleanup(func() { _ = f.Close() })
			return f
		},
		"webhdfs": func(...string) filesys.FS {
			f, err := webhdfs.New(webhdfs.Options{Name: "m", URLs: []string{"http://" + ours.HTTP(), "http://" + other.HTTP()}, User: "root", CallTimeout: 20 * time.Second, Wait: 10 * time.Millisecond})
			require.NoError(t, err)
			t.Cleanup(func() { _ = f.Close() })
			return f
		},
	}
	at := func(f filesys.FS, name string) commitstep.Address {
		return commitstep.Address{Resource: f.Resource(), Path: dir + "/" + name}
	}
	opened := map[string]filesys.FS{"hdfs": open["hdfs"](), "hdfs with web servers": open["hdfs"](ours.HTTP(), other.HTTP()), "webhdfs": open["webhdfs"]()}
	for name, f := range opened {
		_, err := f.Stat(t.Context(), at(f, "a"))
		require.NoError(t, err, name)
		seen := map[string]bool{}
		for _, s := range f.(filesys.ServerLister).Servers(t.Context()) {
			require.NoError(t, s.Err, s.Address)
			seen[s.Namespace] = true
		}
		require.Len(t, seen, 2, name)
	}
	// Web servers of another cluster than the name nodes'.
	mixed, err := hdfs.New(hdfs.Options{Name: "n", Addresses: []string{ours.RPC()}, HTTPAddresses: []string{other.HTTP()}, User: "root", CallTimeout: 20 * time.Second, Wait: 10 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { _ = mixed.Close() })
	_, err = mixed.Stat(t.Context(), at(mixed, "a"))
	require.ErrorContains(t, err, "another namespace")

	conf := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, `resources:
  hdfs://m: {addresses: [%q, %q], user: root}
  hdfs://n: {addresses: [%q], http_addresses: [%q], user: root}
  webhdfs://m: {urls: [%q, %q], user: root}
  hdfs://ok: {addresses: [%q], http_addresses: [%q], user: root}
`, ours.RPC(), other.RPC(), ours.RPC(), other.HTTP(), "http://"+ours.HTTP(), "http://"+other.HTTP(), other.RPC(), other.HTTP()), 0o600))
	sh := &commandLine{t, map[string]string{"COMMITSTEP_CONFIG": conf, "HOME": t.TempDir()}}
	out, errs := sh.run(cli.ExitPartial, "doctor")
	require.Contains(t, errs, "3 of 5 ")
	require.Contains(t, out, ours.RPC()+" and "+other.RPC()+" belong to two clusters")

	require.NoError(t, ours.Kill(hadoopkit.NameNode))
	for name, f := range opened {
		err := f.Rename(t.Context(), at(f, "a"), at(f, "b"))
		require.ErrorContains(t, err, "another namespace", name)
		require.Equal(t, commitstep.ClassNotSent, commitstep.ClassOf(err), name)
		require.ErrorContains(t, f.MkdirAll(t.Context(), at(f, "made")), "another namespace", name)
		_, err = f.Stat(t.Context(), at(f, "a"))
		require.Error(t, err, name)
	}
	for _, name := range []string{"b", "made"} {
		_, err := theirs.Stat(dir + "/" + name)
		require.True(t, errors.Is(err, os.ErrNotExist), "%s: %v", name, err)
	}
}
