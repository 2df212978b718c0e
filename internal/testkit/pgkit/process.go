package pgkit

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// process is a server of ours.
type process struct {
	cmd   *exec.Cmd
	sig   syscall.Signal
	ended chan struct{}
	mu    sync.Mutex
	out   bytes.Buffer
}

// Write keeps what the server says.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out.Len() > 1<<20 {
		p.out.Next(p.out.Len() / 2)
	}
	return p.out.Write(b)
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return tail(p.out.Bytes())
}

// startProcess starts a server that the kernel ends with the given signal when
// this process dies, however it dies. The kernel takes the starting thread for
// the parent, so a goroutine keeps that thread until the server has ended.
func startProcess(dir string, own *syscall.Credential, onDeath syscall.Signal, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), sig: onDeath, ended: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.WaitDelay = 5 * time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: own, Pdeathsig: onDeath, Setpgid: true}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.ended)
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // how it ended is in its output
		}
	}()
	if err := <-started; err != nil {
		<-p.ended
		return nil, fmt.Errorf("pgkit: start %s: %w", name, err)
	}
	return p, nil
}

// ready waits until check succeeds.
func (p *process) ready(ctx context.Context, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("pgkit: %s ended: %s", p.cmd.Path, p.output())
		case <-ctx.Done():
			return fmt.Errorf("pgkit: %s does not answer: %w: %s", p.cmd.Path, err, p.output())
		case <-time.After(20 * time.Millisecond): // a server has no signal for "listening"
		}
	}
}

// end sends sig and waits; a server that does not end in time is killed.
func (p *process) end(sig syscall.Signal) {
	_ = p.cmd.Process.Signal(sig)
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-p.ended:
	case <-t.C:
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}
