package hivekit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/internal/testkit/jvm"
)

// startLimit bounds the wait for a server, which loads four times the classes
// of a name node. On a busy machine a minute and more were seen.
const startLimit = 3 * jvm.StartLimit

func (s *Server) launch() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.starter == nil {
		return fmt.Errorf("start HiveServer2: %w", errNotOurs)
	}
	if s.proc != nil && s.proc.Alive() {
		return fmt.Errorf("start HiveServer2: process %d still runs; kill it first", s.proc.Pid())
	}
	out, err := os.OpenFile(s.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := s.tools.server(s.Dir, s.confDir(), s.Heap).Command("org.apache.hive.service.server.HiveServer2")
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, s.Dir
	if s.proc, err = s.starter.Start(cmd, s.detached); err != nil {
		return err
	}
	s.Pid = s.proc.Pid()
	return s.save()
}

// mark is in the command line of every process of this server.
func (s *Server) mark() string { return filepath.Join(s.Dir, "logs", "derby.log") }

// Await waits until the server answers.
func (s *Server) Await() error {
	s.mu.Lock()
	proc, pid := s.proc, s.Pid
	s.mu.Unlock()
	var ended <-chan struct{}
	if proc != nil {
		ended = proc.Ended()
	}
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !s.Ready() {
		select {
		case <-ended:
			return fmt.Errorf("hivekit: HiveServer2 ended while it started (%s); its logs are in %s:\n%s", proc.State(), filepath.Dir(s.Log()), s.LogTail(25))
		case <-limit.C:
			return fmt.Errorf("hivekit: HiveServer2 does not answer after %s; its logs are in %s:\n%s", startLimit, filepath.Dir(s.Log()), s.LogTail(25))
		case <-tick.C:
			if proc == nil && !jvm.Is(pid, s.mark()) {
				return fmt.Errorf("hivekit: HiveServer2 (process %d) has ended; its logs are in %s:\n%s", pid, filepath.Dir(s.Log()), s.LogTail(25))
			}
		}
	}
	return nil
}

// Ready reports whether the server answers: its port is open and its web server
// tells which queries it has.
func (s *Server) Ready() bool {
	conn, err := net.DialTimeout("tcp", s.Address(), time.Second)
	if err != nil {
		return false
	}
	_ = conn.Close()
	// Its own transport: no connection stays behind.
	client := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(s.WebUI() + "/api/v1/queries/active")
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var queries []any
	return resp.StatusCode == http.StatusOK && json.NewDecoder(resp.Body).Decode(&queries) == nil
}

func (s *Server) process() (*jvm.Process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil && s.proc.Alive() {
		return s.proc, nil
	}
	return nil, fmt.Errorf("hivekit: HiveServer2: %w, or it has ended", errNotOurs)
}

// Kill ends the process by SIGKILL and waits until it is gone.
func (s *Server) Kill() error {
	p, err := s.process()
	if err != nil {
		return err
	}
	p.Kill()
	return nil
}

// Freeze stops the process (SIGSTOP) and waits until all its threads stand.
func (s *Server) Freeze() error {
	p, err := s.process()
	if err != nil {
		return err
	}
	if err := p.Freeze(); err != nil {
		return fmt.Errorf("hivekit: freeze: %w", err)
	}
	return nil
}

// Thaw lets a frozen process go on (SIGCONT).
func (s *Server) Thaw() error {
	p, err := s.process()
	if err != nil {
		return err
	}
	return p.Thaw()
}

// Restart starts the server again on its ports and data after it was killed,
// and waits until it answers. Its sessions and operations are gone.
func (s *Server) Restart() error {
	if err := s.launch(); err != nil {
		return fmt.Errorf("hivekit: %w", err)
	}
	return s.Await()
}

// StopDetached kills the process of a detached server in dir, if it still is
// what was started there, and removes what it had on HDFS, if that still runs.
// An absent one is success.
func StopDetached(dir string) error {
	s, err := read(dir)
	if os.IsNotExist(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("hivekit: %w", err)
	}
	if err := jvm.KillPid(s.Pid, s.mark()); err != nil {
		return fmt.Errorf("hivekit: stop HiveServer2 (pid %d): %w", s.Pid, err)
	}
	if c, err := hadoopkit.Attach(s.HadoopDir); err == nil {
		s.Hadoop = c
		if err := s.RemoveData(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("hivekit: %s: %w", s.URL(""), err)
		}
	}
	return nil
}
