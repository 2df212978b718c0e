package testkit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Patience bounds every wait for a child. It is far above what any child needs,
// and only there so that a hanging one fails its own test with its output
// instead of the whole run.
const Patience = 60 * time.Second

// Process is a child seen from the test that started it. Its methods fail the
// test when the child does not behave; they are called from the test's own
// goroutine.
type Process struct {
	t     testing.TB
	role  string
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	ended chan struct{} // closed when the process is reaped

	mu   sync.Mutex
	said bytes.Buffer // everything on stdout and stderr, for messages
}

// Option changes how a child is started.
type Option func(*exec.Cmd)

// AsUser runs the child under another user and group, without supplementary
// groups. Only root may.
func AsUser(uid, gid uint32) Option {
	return func(c *exec.Cmd) {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	}
}

// Env adds variables, "NAME=value".
func Env(vars ...string) Option {
	return func(c *exec.Cmd) { c.Env = append(c.Env, vars...) }
}

// Start runs the test binary again in the given role. The child is killed when
// the test ends.
func Start(t testing.TB, role string, args ...string) *Process {
	t.Helper()
	return StartWith(t, role, args)
}

// StartWith is Start with options.
func StartWith(t testing.TB, role string, args []string, opts ...Option) *Process {
	t.Helper()
	// Not os.Executable's path: the directory that the go tool builds in is
	// closed to other users, this link is not.
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	// A group of its own, so that a signal meant for the child hits nobody else.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	for _, o := range opts {
		o(cmd)
	}
	p := &Process{t: t, role: role, cmd: cmd, lines: make(chan string, 1024), ended: make(chan struct{})}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	p.in = in
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	cmd.Stdout, cmd.Stderr = w, &lockedWriter{&p.mu, &p.said}
	// Grandchildren that keep stderr open must not hang Wait.
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		_, _ = r.Close(), w.Close()
		t.Fatalf("testkit: start %s: %v", role, err)
	}
	_ = w.Close()
	go func() {
		defer close(p.lines)
		defer r.Close()
		sc := bufio.NewScanner(r)
		sc.Buffer(nil, 16<<20)
		for sc.Scan() {
			p.mu.Lock()
			p.said.WriteString(sc.Text() + "\n")
			p.mu.Unlock()
			p.lines <- sc.Text()
		}
	}()
	go func() {
		_ = cmd.Wait() // the state is read by Exit
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		_ = p.in.Close()
		for range p.lines { // lets the reader end
		}
		<-p.ended
	})
	return p
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// PID is the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Output is everything the child wrote so far.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// Line waits for the next line of the child.
func (p *Process) Line() string {
	p.t.Helper()
	timeout := time.NewTimer(Patience)
	defer timeout.Stop()
	select {
	case s, ok := <-p.lines:
		if !ok {
			p.t.Fatalf("testkit: %s ended without a further line; it wrote:\n%s", p.role, p.Output())
		}
		return s
	case <-timeout.C:
		p.t.Fatalf("testkit: no line from %s within %s; it wrote:\n%s", p.role, Patience, p.Output())
		return ""
	}
}

// WaitLine reads lines until one starts with prefix, and returns the rest of
// that line without leading spaces.
func (p *Process) WaitLine(prefix string) string {
	p.t.Helper()
	for {
		if rest, ok := strings.CutPrefix(p.Line(), prefix); ok {
			return strings.TrimLeft(rest, " ")
		}
	}
}

// Tell sends the child one line.
func (p *Process) Tell(format string, a ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", a...); err != nil {
		p.t.Fatalf("testkit: tell %s: %v; it wrote:\n%s", p.role, err, p.Output())
	}
}

// Kill ends the child by SIGKILL and waits until it is gone: its locks are
// released then.
func (p *Process) Kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// Freeze stops the child (SIGSTOP) and waits until it is stopped.
func (p *Process) Freeze() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	deadline := time.Now().Add(Patience)
	for {
		state, err := stateOf(p.PID())
		if err != nil || time.Now().After(deadline) {
			p.t.Fatalf("testkit: %s does not stop (state %q, %v)", p.role, state, err)
		}
		if state == 'T' {
			return
		}
		time.Sleep(time.Millisecond) // the kernel has no signal for "stopped" to a non-tracer
	}
}

// stateOf reads the one-letter state from the kernel. The command name before
// it is in parentheses and may hold anything.
func stateOf(pid int) (byte, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	i := bytes.LastIndexByte(b, ')')
	if i < 0 || i+2 >= len(b) {
		return 0, fmt.Errorf("odd stat line %q", b)
	}
	return b[i+2], nil
}

// Thaw lets a frozen child go on (SIGCONT).
func (p *Process) Thaw() { p.signal(syscall.SIGCONT) }

func (p *Process) signal(s syscall.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("testkit: signal %s to %s: %v", s, p.role, err)
	}
}

// Exit waits for the child's end and returns its exit code, or -1 and the
// signal that ended it.
func (p *Process) Exit() (code int, by syscall.Signal) {
	p.t.Helper()
	return p.ExitWithin(Patience)
}

// ExitWithin is Exit for a child that waits for slower servers than this package
// knows of.
func (p *Process) ExitWithin(patience time.Duration) (code int, by syscall.Signal) {
	p.t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-p.ended:
	case <-timeout.C:
		p.t.Fatalf("testkit: %s does not end within %s; it wrote:\n%s", p.role, patience, p.Output())
	}
	st := p.cmd.ProcessState
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return -1, ws.Signal()
	}
	return st.ExitCode(), 0
}
