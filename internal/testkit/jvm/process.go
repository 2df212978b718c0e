package jvm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// StartLimit bounds every wait for a process. It is far above what one needs on
// a busy machine, and only there so that a hanging one fails with its logs.
const StartLimit = 3 * time.Minute

// Process was started by a [Starter] of this process.
type Process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it is reaped
}

// Pid of it.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Ended is closed when it has ended; State is valid then.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// State says how it ended.
func (p *Process) State() *os.ProcessState { return p.cmd.ProcessState }

// Alive is false when it has ended.
func (p *Process) Alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Kill ends it by SIGKILL, also a frozen one, and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // fails when it has ended
	<-p.ended
}

// Freeze stops it (SIGSTOP) and waits until all its threads stand.
func (p *Process) Freeze() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for limit := time.Now().Add(StartLimit); ; {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
		if err != nil {
			return err
		}
		if i := bytes.LastIndexByte(b, ')'); i >= 0 && i+2 < len(b) && b[i+2] == 'T' {
			return nil
		}
		if time.Now().After(limit) {
			return errors.New("it does not stop")
		}
		time.Sleep(time.Millisecond) // there is no signal for "stopped" to a non-tracer
	}
}

// Thaw lets a frozen one go on (SIGCONT).
func (p *Process) Thaw() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// Signal is for the gentle ones.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Starter starts processes from one thread that lives as long as they are to:
// the kernel kills them when the thread ends, and so when this process does,
// however it ends.
type Starter struct {
	work chan func()
	done chan struct{}

	mu      sync.RWMutex // held for writing by Stop, for reading by those who start
	stopped bool
}

// NewStarter is to be stopped.
func NewStarter() *Starter {
	s := &Starter{work: make(chan func()), done: make(chan struct{})}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		defer close(s.done)
		for fn := range s.work {
			fn()
		}
	}()
	return s
}

// Stop ends the thread, and with it all its processes that are not detached.
func (s *Starter) Stop() {
	s.mu.Lock()
	if !s.stopped {
		s.stopped = true
		close(s.work)
	}
	s.mu.Unlock()
	<-s.done
}

// Start runs a command, not after Stop. A detached one outlives this process.
func (s *Starter) Start(cmd *exec.Cmd, detached bool) (*Process, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.stopped {
		return nil, errors.New("jvm: started after the end")
	}
	p := &Process{cmd: cmd, ended: make(chan struct{})}
	err := make(chan error)
	s.work <- func() {
		// A group or session of its own: an interrupt at the terminal is for
		// the test, which then ends its processes.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if detached {
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		}
		err <- cmd.Start()
	}
	if err := <-err; err != nil {
		return nil, err
	}
	go func() {
		_ = cmd.Wait() // its state is read by those who care
		close(p.ended)
	}()
	return p, nil
}

// Await waits until ready, which is asked again and again, or says why that
// will not be.
func Await(p *Process, ready func() bool) error {
	limit := time.NewTimer(StartLimit)
	defer limit.Stop()
	tick := time.NewTicker(50 * time.Millisecond) // servers give no signal
	defer tick.Stop()
	for !ready() {
		select {
		case <-p.ended:
			return fmt.Errorf("ended while it started (%s)", p.State())
		case <-limit.C:
			return fmt.Errorf("is not ready after %s", StartLimit)
		case <-tick.C:
		}
	}
	return nil
}

// Run runs a command to its end and gives what it printed.
func (s *Starter) Run(cmd *exec.Cmd) (string, error) {
	name := strings.Join(cmd.Args[max(0, len(cmd.Args)-3):], " ")
	var out lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	p, err := s.Start(cmd, false)
	if err != nil {
		return "", err
	}
	select {
	case <-p.ended:
	case <-time.After(StartLimit):
		p.Kill()
		return "", fmt.Errorf("%s does not end: %s", name, out.String())
	}
	if !cmd.ProcessState.Success() {
		return out.String(), fmt.Errorf("%s: %s: %s", name, cmd.ProcessState, out.String())
	}
	return out.String(), nil
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Is reports whether the process of a number still is the one whose command
// line holds mark: numbers are used again.
func Is(pid int, mark string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.Contains(line, []byte(mark))
}

// KillPid ends a process that another one started, if it still is the one
// whose command line holds mark.
func KillPid(pid int, mark string) error {
	if !Is(pid, mark) {
		return nil
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		return err
	}
	return nil
}

// LogTail gives the last lines of every file in a directory of logs.
func LogTail(dir string, lines int) string {
	var out strings.Builder
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || len(b) == 0 {
			continue
		}
		all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
		fmt.Fprintf(&out, "---- %s\n%s\n", f, strings.Join(all[max(0, len(all)-lines):], "\n"))
	}
	return out.String()
}
