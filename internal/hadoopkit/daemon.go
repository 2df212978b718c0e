package hadoopkit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// startLimit bounds every wait for a process. It is far above what one needs on
// a busy machine, and only there so that a hanging one fails with its logs.
const startLimit = 3 * time.Minute

// daemon is a process that this one started.
type daemon struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it is reaped
}

func (d *daemon) kill() {
	_ = d.cmd.Process.Signal(syscall.SIGKILL) // fails when it has ended
	<-d.ended
}

func (d *daemon) alive() bool {
	select {
	case <-d.ended:
		return false
	default:
		return true
	}
}

// starter starts processes from one thread that lives as long as they are to:
// the kernel kills them when the thread ends, and so when this process does,
// however it ends.
type starter struct {
	work chan func()
	done chan struct{}
}

func newStarter() *starter {
	s := &starter{work: make(chan func()), done: make(chan struct{})}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		defer close(s.done)
		for fn := range s.work {
			fn()
		}
	}()
	return s
}

func (s *starter) stop() {
	close(s.work)
	<-s.done
}

func (s *starter) start(d *daemon, detached bool) error {
	err := make(chan error)
	s.work <- func() {
		// A group or session of its own: an interrupt at the terminal is for
		// the test, which then ends its processes.
		d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if detached {
			d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		}
		err <- d.cmd.Start()
	}
	if err := <-err; err != nil {
		return err
	}
	go func() {
		_ = d.cmd.Wait() // its state is read by those who care
		close(d.ended)
	}()
	return nil
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

func classOf(r Role) string {
	if r == DataNode {
		return "org.apache.hadoop.hdfs.server.datanode.DataNode"
	}
	return "org.apache.hadoop.hdfs.server.namenode.NameNode"
}

// StartRole starts one process on the directories it had, and waits until it
// is ready. A name node of two comes up as a standby.
func (c *Cluster) StartRole(r Role) error {
	if err := c.launch(r); err != nil {
		return err
	}
	return c.await(r)
}

func (c *Cluster) launch(r Role) error {
	if c.starter == nil {
		return fmt.Errorf("start %s: %w", r, errNotOurs)
	}
	out, err := os.OpenFile(filepath.Join(c.Dir, "logs", string(r)+".out"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	log := filepath.Join(c.Dir, "logs", string(r)+".log")
	cmd := c.tools.command(c.confDir(r), c.Heap, c.C2, []string{"-Dhadoop.root.logger=INFO,file", "-Dhadoop.log.file=" + log}, classOf(r))
	cmd.Stdout, cmd.Stderr = out, out
	d := &daemon{cmd: cmd, ended: make(chan struct{})}
	if err := c.starter.start(d, c.detached); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.procs[r] = d
	c.Pids[r] = cmd.Process.Pid
	return c.save()
}

func (c *Cluster) await(r Role) error {
	c.mu.Lock()
	d := c.procs[r]
	c.mu.Unlock()
	if d == nil {
		return fmt.Errorf("%s: %w", r, errNotOurs)
	}
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !c.Ready(r) {
		select {
		case <-d.ended:
			return fmt.Errorf("%s ended while it started (%s); its logs are in %s:\n%s", r, d.cmd.ProcessState, filepath.Join(c.Dir, "logs"), c.LogTail(15))
		case <-limit.C:
			return fmt.Errorf("%s is not ready after %s; its logs are in %s:\n%s", r, startLimit, filepath.Join(c.Dir, "logs"), c.LogTail(15))
		case <-tick.C:
		}
	}
	return nil
}

// Ready reports whether a process answers: a name node when it serves requests,
// also as a standby; a data node when a name node has it and can be written to.
func (c *Cluster) Ready(r Role) bool {
	switch r {
	case NameNode, NameNode2:
		i := 0
		if r == NameNode2 {
			i = 1
		}
		return strings.Contains(c.jmx(c.Ports.HTTP[i], "Hadoop:service=NameNode,name=NameNodeStatus"), `"State"`) && accepts(c.Ports.RPC[i])
	}
	if !strings.Contains(c.jmx(c.Ports.DataWeb, "Hadoop:service=DataNode,name=DataNodeInfo"), "RUNNING") {
		return false // what a name node says may still be of an earlier one
	}
	for i := range c.HTTPs() {
		if strings.Contains(c.jmx(c.Ports.HTTP[i], "Hadoop:service=NameNode,name=FSNamesystemState"), `"NumLiveDataNodes" : 1`) &&
			strings.Contains(c.jmx(c.Ports.HTTP[i], "Hadoop:service=NameNode,name=NameNodeInfo"), `"Safemode" : ""`) {
			return true
		}
	}
	return false
}

// Active reports whether a name node says that it is the active one.
func (c *Cluster) Active(r Role) bool {
	i := 0
	if r == NameNode2 {
		i = 1
	}
	return strings.Contains(c.jmx(c.Ports.HTTP[i], "Hadoop:service=NameNode,name=NameNodeStatus"), `"State" : "active"`)
}

func (c *Cluster) jmx(port int, bean string) string {
	// Its own transport: no connection stays behind.
	client := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + at(port) + "/jmx?qry=" + bean)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(b)
}

func accepts(port int) bool {
	conn, err := net.DialTimeout("tcp", at(port), time.Second)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func (c *Cluster) daemon(r Role) (*daemon, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.procs[r]; d != nil && d.alive() {
		return d, nil
	}
	return nil, fmt.Errorf("hadoopkit: %s: %w, or it has ended", r, errNotOurs)
}

// Kill ends a process by SIGKILL and waits until it is gone.
func (c *Cluster) Kill(r Role) error {
	d, err := c.daemon(r)
	if err != nil {
		return err
	}
	d.kill()
	return nil
}

// Freeze stops a process (SIGSTOP) and waits until all its threads stand.
func (c *Cluster) Freeze(r Role) error {
	d, err := c.daemon(r)
	if err != nil {
		return err
	}
	if err := d.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for limit := time.Now().Add(startLimit); ; {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
		if err != nil {
			return err
		}
		if i := bytes.LastIndexByte(b, ')'); i >= 0 && i+2 < len(b) && b[i+2] == 'T' {
			return nil
		}
		if time.Now().After(limit) {
			return fmt.Errorf("hadoopkit: %s does not stop", r)
		}
		time.Sleep(time.Millisecond) // there is no signal for "stopped" to a non-tracer
	}
}

// Thaw lets a frozen process go on (SIGCONT).
func (c *Cluster) Thaw(r Role) error {
	d, err := c.daemon(r)
	if err != nil {
		return err
	}
	return d.cmd.Process.Signal(syscall.SIGCONT)
}

// StopDetached kills the processes of a detached cluster in dir, if they still
// are what was started there. An absent one is success.
func StopDetached(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, clusterFile))
	if os.IsNotExist(err) {
		return nil
	} else if err != nil {
		return err
	}
	var c Cluster
	if err := json.Unmarshal(b, &c); err != nil {
		return fmt.Errorf("hadoopkit: %s: %w", filepath.Join(dir, clusterFile), err)
	}
	for r, pid := range c.Pids {
		// The number may be another process's by now; the log's path is in
		// the command line of ours.
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !bytes.Contains(line, []byte(filepath.Join(c.Dir, "logs", string(r)+".log"))) {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			return fmt.Errorf("hadoopkit: stop %s (pid %d): %w", r, pid, err)
		}
	}
	return nil
}
