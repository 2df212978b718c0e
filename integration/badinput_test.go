package integration_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// program is built once, as a user gets it, and removed by TestMain.
var program struct {
	once sync.Once
	dir  string
	err  error
}

func command() (string, error) {
	p := &program
	p.once.Do(func() {
		if p.dir, p.err = os.MkdirTemp("", "commitstep-program-"); p.err != nil {
			return
		}
		if out, err := exec.Command("go", "build", "-o", filepath.Join(p.dir, "commitstep"), "../cmd/commitstep").CombinedOutput(); err != nil {
			p.err = fmt.Errorf("%w: %s", err, out)
			return
		}
		p.err = os.Chmod(p.dir, 0o755) // other users run it too
	})
	return filepath.Join(p.dir, "commitstep"), p.err
}

// answer is how a command ended.
type answer struct {
	code        int
	out, errout string
}

// runCommand runs the program in a directory.
func runCommand(t testing.TB, dir string, change func(*exec.Cmd), args ...string) answer {
	t.Helper()
	bin, err := command()
	require.NoError(t, err)
	c := exec.Command(bin, args...)
	c.Dir = dir
	c.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + dir}
	var out, errout bytes.Buffer
	c.Stdout, c.Stderr = &out, &errout
	if change != nil {
		change(c)
	}
	err = c.Run()
	if _, ended := err.(*exec.ExitError); !ended {
		require.NoError(t, err)
	}
	code := c.ProcessState.ExitCode()
	if ws, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		code = -int(ws.Signal())
	}
	require.NotContains(t, errout.String(), "goroutine ", "it panicked")
	return answer{code, out.String(), errout.String()}
}

// complaint is what a failed command says with --quiet: one line.
func (a answer) complaint(t testing.TB) string {
	t.Helper()
	text := strings.TrimSuffix(a.errout, "\n")
	require.NotEmpty(t, text, "it failed with %d and says nothing", a.code)
	require.NotContains(t, text, "\n", "one line")
	return text
}

// shop is a directory with a store, a staged file and a good plan.
func shop(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755)) // another user works here too
	require.NoError(t, os.WriteFile(filepath.Join(dir, "in"), []byte("data"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "good.yaml"), []byte(goodPlan), 0o644))
	require.Zero(t, runCommand(t, dir, nil, "store", "init", "--store", "bolt:s.db").code)
	return dir
}

const head = "apiVersion: commitstep/v1\nkind: Plan\njob: j\ndataset: d\n"

const goodPlan = head + `stages:
- steps:
  - kind: fs.rename
    params: {from: in, to: out/f}
- steps:
  - kind: watermark.set
    params: {source: "s:0", from: null, to: 100}
`

// renames is a plan of renames, "from,to" each.
func renames(pairs ...string) string {
	s := head + "stages:\n- steps:\n"
	for _, p := range pairs {
		from, to, _ := strings.Cut(p, ",")
		s += fmt.Sprintf("  - kind: fs.rename\n    params: {from: %q, to: %q}\n", from, to)
	}
	return s
}

// TestWrongPlans: each is refused with one line that says where and what next,
// in words and as JSON, and nothing is stored or moved.
func TestWrongPlans(t *testing.T) {
	t.Parallel()
	step := func(kind, params string) string {
		return head + "stages:\n- steps:\n  - kind: " + kind + "\n    params: " + params + "\n"
	}
	mark := func(params string) string { return step("watermark.set", params) }
	plans := map[string]string{
		"empty":                        "",
		"not YAML":                     "{[",
		"a list":                       "- 1\n- 2\n",
		"a text":                       "publish everything",
		"another kind":                 strings.Replace(goodPlan, "kind: Plan", "kind: Pan", 1),
		"another version":              strings.Replace(goodPlan, "commitstep/v1", "commitstep/v9", 1),
		"no job":                       strings.Replace(goodPlan, "job: j\n", "", 1),
		"empty dataset":                strings.Replace(goodPlan, "dataset: d", `dataset: ""`, 1),
		"long dataset":                 strings.Replace(goodPlan, "dataset: d", "dataset: "+strings.Repeat("x", 1025), 1),
		"not UTF-8":                    strings.Replace(goodPlan, "dataset: d", "dataset: caf\xe9", 1),
		"unknown field":                goodPlan + "stagess: []\n",
		"field twice":                  goodPlan + "job: k\n",
		"no stages":                    head,
		"empty stage":                  head + "stages:\n- steps: []\n",
		"null stage":                   head + "stages:\n- null\n",
		"two documents":                goodPlan + "---\n" + goodPlan,
		"no kind":                      head + "stages:\n- steps:\n  - params: {from: in, to: out}\n",
		"unknown kind":                 step("fs.renam", "{from: in, to: out/f}"),
		"misspelt parameter":           step("fs.rename", "{from: in, too: out/f}"),
		"no destination":               step("fs.rename", "{from: in}"),
		"wrong type":                   step("fs.rename", "{from: [in], to: out/f}"),
		"parameters are a text":        step("fs.rename", "in to out"),
		"missing source":               renames("nowhere,out/f"),
		"destination taken":            renames("in,good.yaml"),
		"one destination twice":        renames("in,out/f", "good.yaml,out/f"),
		"one source twice":             renames("in,out/f", "in,out/g"),
		"into itself":                  renames("in,in/f"),
		"file as a directory":          renames("in,good.yaml/f"),
		"NUL in a path":                step("fs.rename", `{from: "in\0", to: out/f}`),
		"empty path":                   renames("in,"),
		"another host":                 renames("in,file://host/f"),
		"unconfigured resource":        renames("in,hdfs://prod/f"),
		"password in an address":       renames("in,hdfs://me:secret@prod/f"),
		"secret parameter":             step("fs.rename", "{from: in, to: out/f, password: hunter2}"),
		"wrong length":                 step("fs.rename", "{from: in, to: out/f, length: 5}"),
		"negative length":              step("fs.rename", "{from: in, to: out/f, length: -1}"),
		"wrong mode":                   step("fs.rename", "{from: in, to: out/f, mode: '999'}"),
		"unknown owner":                step("fs.rename", "{from: in, to: out/f, owner: nobody-of-that-name}"),
		"data after a watermark":       head + "stages:\n- steps:\n  - {kind: watermark.set, params: {source: s, from: null, to: 1}}\n- steps:\n  - {kind: fs.rename, params: {from: in, to: out/f}}\n",
		"watermark without from":       mark("{source: s, to: 1}"),
		"watermark backwards":          mark("{source: s, from: 5, to: 4}"),
		"watermark with a fraction":    mark("{source: s, from: null, to: 1.5}"),
		"watermark beyond 64 bits":     mark("{source: s, from: null, to: 99999999999999999999}"),
		"watermark to nothing":         mark("{source: s, from: 1, to: null}"),
		"watermark not as read":        mark("{source: s, from: 7, to: 8}"),
		"watermark without source":     mark(`{source: "", from: null, to: 1}`),
		"cleanup of the root":          renames("in,out/f") + "cleanup:\n- path: /\n",
		"cleanup of nothing":           renames("in,out/f") + "cleanup:\n- path: nowhere\n",
		"cleanup of a destination":     renames("in,out/f") + "cleanup:\n- path: out\n",
		"cleanup in a stage":           step("fs.remove", "{path: out}"),
		"cleanup with another's files": renames("in,../out-of-the-shop/f") + "cleanup:\n- path: .\n",
		"cleanup with a wrong word":    renames("in,out/f") + "cleanup:\n- {path: ., leftovers: keep}\n",
	}
	for name, plan := range plans {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := shop(t)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "plan.yaml"), []byte(plan), 0o644))
			for _, args := range [][]string{{"publish", "-f", "plan.yaml"}, {"plan", "validate", "-f", "plan.yaml"}} {
				args = append(args, "--quiet", "--store", "bolt:s.db")
				a := runCommand(t, dir, nil, args...)
				require.Contains(t, []int{1, 2, 7}, a.code, "%+v", a)
				text := a.complaint(t)
				require.NotContains(t, text, "hunter2")
				require.NotContains(t, text, "me:secret")
				a = runCommand(t, dir, nil, append(args, "-o", "json")...)
				var e struct{ APIVersion, Kind, Message string }
				require.NoError(t, json.Unmarshal([]byte(a.errout), &e), a.errout)
				require.Equal(t, "Error", e.Kind)
				require.NotEmpty(t, e.Message)
			}
			a := runCommand(t, dir, nil, "pending", "list", "-o", "json", "--quiet", "--store", "bolt:s.db")
			require.Zero(t, a.code)
			require.Contains(t, a.out, `"items": []`)
			b, err := os.ReadFile(filepath.Join(dir, "in"))
			require.NoError(t, err)
			require.Equal(t, "data", string(b))
			require.NoDirExists(t, filepath.Join(dir, "out"))
			// The same shop still takes a good plan.
			require.Zero(t, runCommand(t, dir, nil, "publish", "-f", "good.yaml", "--store", "bolt:s.db").code)
		})
	}
}

// TestWrongFlags: code 2, one line, nothing done.
func TestWrongFlags(t *testing.T) {
	t.Parallel()
	dir := shop(t)
	for _, args := range []string{"publsh -f good.yaml", "publish", "publish -f", "publish --nonsense", "publish -f good.yaml extra", "publish -f good.yaml -o xml",
		"publish -f good.yaml --budget soon", "publish -f good.yaml --format toml", "recover --concurrency none", "recover --concurrency 0", "recover --budget 3",
		"publish -f good.yaml --store s3://bucket", "publish -f good.yaml --store bolt:", "pending", "pending lst", "pending show", "resolve d --job j --as perhaps --reason because",
		"history show", "watermark get --job j", "watermark set --job j", "store", "store adopt", "store init a b", "quickstart a b", "quickstart --crash-at nowhere"} {
		fields := append([]string{"--quiet"}, strings.Fields(args)...)
		if !strings.Contains(args, "--store") {
			fields = append([]string{"--store", "bolt:s.db"}, fields...)
		}
		a := runCommand(t, dir, nil, fields...)
		require.Equal(t, 2, a.code, "%s: %+v", args, a)
		a.complaint(t)
		require.Empty(t, a.out, args)
	}
	require.NoDirExists(t, filepath.Join(dir, "out"))
}

// TestWrongStoreFiles: every command answers 9 with one line that names the
// file, changes nothing of it, and makes none.
func TestWrongStoreFiles(t *testing.T) {
	t.Parallel()
	dir := shop(t)
	sound, err := os.ReadFile(filepath.Join(dir, "s.db"))
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(9, 9))
	files := map[string][]byte{
		"empty": {}, "text": []byte("a shopping list\n"), "zeros": make([]byte, 64<<10),
		"cut": sound[:len(sound)/2], "short": sound[:100], "magic": sound[:32],
	}
	noise := make([]byte, 64<<10)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	files["noise"] = noise
	for _, at := range []int{16, 76, 4096 + 16, 4096 + 76} { // the magic and the checksum of both first pages
		flipped := bytes.Clone(sound)
		flipped[at] ^= 1
		files[fmt.Sprint("flipped at ", at)] = flipped
	}
	commands := []string{"publish -f good.yaml", "recover --job j", "pending list", "history list", "watermark list --job j", "store check"}
	for name, content := range files {
		path := filepath.Join(dir, name+".db")
		require.NoError(t, os.WriteFile(path, content, 0o644))
		for _, c := range commands {
			a := runCommand(t, dir, nil, append(strings.Fields(c), "--quiet", "--store", "bolt:"+path)...)
			require.Equal(t, 9, a.code, "%s, %s: %+v", name, c, a)
			require.Contains(t, a.complaint(t), path)
			now, err := os.ReadFile(path)
			require.NoError(t, err)
			require.True(t, bytes.Equal(content, now), "%s, %s: the file was changed", name, c)
		}
	}
	for _, c := range commands {
		for path, hint := range map[string]string{"absent.db": "store init", "no/dir/absent.db": "store init", ".": ""} {
			a := runCommand(t, dir, nil, append(strings.Fields(c), "--quiet", "--store", "bolt:"+path)...)
			require.Equal(t, 9, a.code, "%s: %+v", c, a)
			require.Contains(t, a.complaint(t), hint)
		}
	}
	require.NoFileExists(t, filepath.Join(dir, "absent.db"))
	require.NoDirExists(t, filepath.Join(dir, "out"))
}

// TestStoreOfAnotherUser: no permission is said plainly.
func TestStoreOfAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root may run a program as another user")
	}
	dir := shop(t)
	require.NoError(t, os.Chmod(filepath.Join(dir, "s.db"), 0o600))
	nobody := func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	for _, c := range []string{"publish -f good.yaml", "recover --job j", "pending list"} {
		a := runCommand(t, dir, nobody, append(strings.Fields(c), "--quiet", "--store", "bolt:s.db")...)
		require.Equal(t, 9, a.code, "%+v", a)
		require.Contains(t, a.complaint(t), "permission")
	}
	require.NoDirExists(t, filepath.Join(dir, "out"))
}

// TestDiskFull: on a full disk a publish fails with one clear error, before its
// promise (no room for the log) and after it (no room for a directory); once
// there is space again recover finishes, and nothing is lost or doubled.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root may mount a small file system")
	}
	const files = 300
	for _, promised := range []bool{false, true} {
		t.Run(fmt.Sprintf("promised=%v", promised), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			// Names run out in the second round, not space: the attempts that the
			// log keeps of 300 steps take up to 4 MB.
			size := "size=4m"
			if promised {
				size = "size=64m"
			}
			require.NoError(t, mountTmpfs(dir, size, "nr_inodes=400"))
			t.Cleanup(func() { unmount(dir) })
			var pairs []string
			for i := range files {
				in := fmt.Sprint("in", i)
				require.NoError(t, os.WriteFile(filepath.Join(dir, in), []byte(in), 0o644))
				pairs = append(pairs, fmt.Sprintf("%s,out/%d/f%d", in, i%3, i))
			}
			require.NoError(t, os.WriteFile(filepath.Join(dir, "plan.yaml"), []byte(renames(pairs...)), 0o644))
			require.Zero(t, runCommand(t, dir, nil, "store", "init", "--store", "bolt:s.db").code)
			run := func(args ...string) answer {
				return runCommand(t, dir, nil, append(args, "--quiet", "--store", "bolt:s.db")...)
			}
			again := []string{"publish", "-f", "plan.yaml"}
			var empty func()
			if promised {
				a := runCommand(t, dir, func(c *exec.Cmd) { c.Env = append(c.Env, "COMMITSTEP_CRASH_AT=put.after") }, append(again, "--quiet", "--store", "bolt:s.db")...)
				require.Equal(t, -int(syscall.SIGKILL), a.code, "%+v", a)
				empty = fillNames(t, dir)
				again = []string{"recover", "--job", "j", "--budget", "1s"}
			} else {
				empty = fill(t, filepath.Join(dir, "ballast"))
			}
			said := false // a second is short on a busy machine
			for range 6 { // more often than a step may fail
				a := run(again...)
				said = said || strings.Contains(a.out+a.errout, "no space left")
				require.NotZero(t, a.code, "a full disk is no success: %+v", a)
				if promised {
					require.Equal(t, 8, a.code, "waiting: %+v", a)
				} else {
					require.Contains(t, a.complaint(t), "no space left")
				}
			}
			require.True(t, said)
			empty()
			a := run("recover", "--job", "j")
			require.Zero(t, a.code, "there is space again: %+v", a)
			if !promised {
				require.Zero(t, run(again...).code)
			}
			for i := range files {
				b, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("out/%d/f%d", i%3, i)))
				require.NoError(t, err)
				require.Equal(t, fmt.Sprint("in", i), string(b))
				require.NoFileExists(t, filepath.Join(dir, fmt.Sprint("in", i)))
			}
			a = run("history", "list", "-o", "json")
			require.Equal(t, 1, strings.Count(a.out, `"completed"`), a.out)
			require.Zero(t, run("store", "check").code)
		})
	}
}

// fillNames makes empty files until there is no inode left.
func fillNames(t testing.TB, dir string) (empty func()) {
	t.Helper()
	for n := 0; ; n++ {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint("ballast", n)))
		if err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			return func() {
				for i := range n {
					require.NoError(t, os.Remove(filepath.Join(dir, fmt.Sprint("ballast", i))))
				}
			}
		}
		require.NoError(t, f.Close())
	}
}

// fill writes a file until nothing fits any more.
func fill(t testing.TB, name string) (empty func()) {
	t.Helper()
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	for size := 64 << 10; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			size /= 2
		}
	}
	return func() { require.NoError(t, os.Remove(name)) }
}
