package cli

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// command is this program as a process of its own.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := exec.LookPath("commitstep") // put there by testscript
	require.NoError(t, err)
	c := exec.Command(exe, args...)
	c.Env = append(os.Environ(), "COMMITSTEP_STORE=", "COMMITSTEP_BY=alice", quickExit+"="+quickExitOn)
	return c
}

// A program built with the race detector waits a second before it ends, unless
// told otherwise.
const quickExit, quickExitOn = "GORACE", "atexit_sleep_ms=0"

// TestInterrupt: SIGINT ends a command that waits in good order, which says
// what is left pending.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			st := newStore(t)
			dir := t.TempDir()
			writeFile(t, dir, "effect", "down")
			plan := writeFile(t, dir, "plan.json", planOf("j", "d", "test.effect", "effect"))
			code, said := interrupt(t, sig, command(t, "publish", "-f", plan, "--store", st))
			require.Equal(t, ExitInterrupted, code, said)
			require.Contains(t, said, "is stopped")
			require.Contains(t, said, `recover --job j`)
			code, said = interrupt(t, sig, command(t, "recover", "--store", st))
			require.Equal(t, ExitInterrupted, code, said)
			require.Contains(t, said, "1 pending and 0 parked are left")
			// Whole and readable, and the work goes on.
			require.NoError(t, os.Remove(filepath.Join(dir, "effect")))
			must(t, App{}, "recover", "--store", st)
		})
	}
}

// interrupt sends sig once the command says that it waits.
func interrupt(t *testing.T, sig os.Signal, c *exec.Cmd) (int, string) {
	t.Helper()
	r, err := c.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	defer func() { _ = c.Process.Kill() }() // in case a require failed
	var said strings.Builder
	sc := bufio.NewScanner(r)
	sent := false
	for sc.Scan() {
		said.WriteString(sc.Text() + "\n")
		if !sent && strings.Contains(sc.Text(), "waits: the server is down") {
			require.NoError(t, c.Process.Signal(sig))
			sent = true
		}
	}
	_ = c.Wait() // the code is what counts
	require.True(t, sent, "%s", &said)
	return c.ProcessState.ExitCode(), said.String()
}

// TestLockedStore: a store that another process has open is "locked", at once
// and with its owner named.
func TestLockedStore(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	open, err := boltstore.Open(strings.TrimPrefix(st, "bolt:"), nil)
	require.NoError(t, err)
	defer open.Close()
	c := command(t, "pending", "list", "--store", st, "-o", "json")
	var errOut strings.Builder
	c.Stderr = &errOut
	started := time.Now()
	require.Error(t, c.Run())
	require.Equal(t, ExitLocked, c.ProcessState.ExitCode(), errOut.String())
	require.Contains(t, errOut.String(), `"code":5,"name":"locked"`)
	require.Contains(t, errOut.String(), fmt.Sprint(os.Getpid()))
	require.Less(t, time.Since(started), 5*time.Second)
}

// TestNoPermission: a store that may not be read is code 9, for a user that is
// not root.
func TestNoPermission(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("root, who can run a child as another user, is absent")
	}
	// Where another user can get at the directory.
	dir, err := os.MkdirTemp("/tmp", "commitstep-perm-")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	st := "bolt:" + filepath.Join(dir, "commit.db")
	must(t, App{}, "store", "init", "--store", st)
	require.NoError(t, os.Chmod(filepath.Join(dir, "commit.db"), 0o600))
	c := command(t, "pending", "list", "--store", st)
	// Not by its path: the directories that the go tool builds in are closed to
	// other users, this link is not.
	c.Path = "/proc/self/exe"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := c.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, ExitStore, c.ProcessState.ExitCode(), "%s", out)
	require.Contains(t, string(out), "permission denied")
}

// TestRealTerminal runs a decision on a pseudo-terminal.
func TestRealTerminal(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	dir := t.TempDir()
	writeFile(t, dir, "effect", "conflict")
	plan := writeFile(t, dir, "plan.json", planOf("j", "My Topic", "test.effect", "effect"))
	require.Equal(t, ExitDecision, run(t, App{}, "publish", "-f", plan, "--store", st).code)

	ptmx, tty := openTerminal(t)
	c := command(t, "resolve", "My Topic", "--job", "j", "--as", "abandon", "--reason", "only a test", "--store", st)
	c.Stdin, c.Stderr = tty, tty
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, c.Start())
	defer func() { _ = c.Process.Kill() }() // in case a require failed
	require.NoError(t, tty.Close())
	var said strings.Builder
	b := make([]byte, 4096)
	for !strings.Contains(said.String(), "type My Topic: ") {
		n, err := ptmx.Read(b)
		said.Write(b[:n])
		require.NoError(t, err, "%s", &said)
	}
	require.Contains(t, said.String(), "the sequence ends as abandoned")
	_, err := ptmx.WriteString("My Topic\n")
	require.NoError(t, err)
	require.NoError(t, c.Wait())
	require.Contains(t, must(t, App{}, "history", "list", "--store", st).out, "abandoned")
}

func openTerminal(t *testing.T) (ptmx, tty *os.File) {
	t.Helper()
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = ptmx.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(ptmx.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(ptmx.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	return ptmx, tty
}

// TestStartUp: operators' scripts call the command line in loops. It starts,
// reads an empty store and ends within 50 ms.
func TestStartUp(t *testing.T) {
	// Not parallel: it measures time.
	exe := filepath.Join(t.TempDir(), "commitstep")
	out, err := exec.Command("go", "build", "-o", exe, "github.com/commitstep/engine/cmd/commitstep").CombinedOutput()
	require.NoError(t, err, "%s", out)
	st := newStore(t)
	var took []time.Duration
	for range 20 {
		started := time.Now()
		out, err := exec.Command(exe, "pending", "list", "--store", st, "-o", "json").CombinedOutput()
		took = append(took, time.Since(started))
		require.NoError(t, err, "%s", out)
	}
	sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
	t.Logf("fastest %s, median %s", took[0], took[len(took)/2])
	// The fastest, since the machine may be busy with other things.
	require.LessOrEqual(t, took[0], 50*time.Millisecond, "%v", took)
}
