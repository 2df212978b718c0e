package hivekit

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"sync"

	"github.com/colinmarc/hdfs/v2"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/internal/testkit/jvm"
	"github.com/google/uuid"
)

// Server is a running HiveServer2, or one that was started by another process.
// Safe for concurrent use, but a signal to a shared one hits every other test
// too.
type Server struct {
	Dir           string
	Port, WebPort int
	Auth          Auth
	HTTP          bool
	Cert          string // PEM, with TLS
	// FS is the address of the file system, and Root the directory of this
	// server on it, without a slash at the end.
	FS, Root string
	// HadoopDir is where Hadoop was started.
	HadoopDir string
	// Pid of the last process.
	Pid  int
	Heap string

	// Hadoop holds the warehouse.
	Hadoop *hadoopkit.Cluster `json:"-"`

	detached bool
	tools    tools
	mu       sync.Mutex
	proc     *jvm.Process
	starter  *jvm.Starter
}

const serverFile = "server.json"

// Start makes a server in dir, which must be absent or empty, and waits until
// it answers. Stop ends it.
func Start(dir string, o Options) (*Server, error) {
	s, err := Launch(dir, o)
	if err != nil {
		return nil, err
	}
	if err := s.Await(); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// Launch is Start without the waiting: [Server.Await] and [Attach] wait.
func Launch(dir string, o Options) (*Server, error) {
	t, err := findTools()
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("hivekit: %w", err)
	}
	if o.Hadoop == nil {
		return nil, errors.New("hivekit: a server needs a Hadoop for its warehouse")
	}
	if o.Auth == "" {
		o.Auth = Plain
	}
	if o.Heap == "" {
		o.Heap = "1g"
	}
	s := &Server{
		Dir: dir, Auth: o.Auth, HTTP: o.HTTP, Heap: o.Heap,
		FS: "hdfs://" + o.Hadoop.RPC(), Root: "/hive-" + uuid.NewString(), HadoopDir: o.Hadoop.Dir,
		Hadoop: o.Hadoop, detached: o.Detached, tools: t, starter: jvm.NewStarter(),
	}
	if err := s.prepare(o); err != nil {
		s.Stop()
		return nil, fmt.Errorf("hivekit: start in %s: %w", dir, err)
	}
	if err := s.launch(); err != nil {
		s.Stop()
		return nil, fmt.Errorf("hivekit: start in %s: %w", dir, err)
	}
	return s, nil
}

func (s *Server) prepare(o Options) error {
	if err := jvm.FreePorts(&s.Port, &s.WebPort); err != nil {
		return err
	}
	if err := os.MkdirAll(s.confDir(), 0o755); err != nil {
		return err
	}
	if o.TLS {
		if err := s.makeCertificate(s.starter); err != nil {
			return err
		}
	}
	if err := s.tools.makeShipped(s.Dir); err != nil {
		return err
	}
	if err := s.configure(o); err != nil {
		return err
	}
	return s.super(func(w *hdfs.Client) error {
		return errors.Join(w.Mkdir(s.Root, 0o755), w.Chown(s.Root, User, User))
	})
}

// super does something as the superuser of HDFS, who is the one that runs the
// name node.
func (s *Server) super(fn func(*hdfs.Client) error) error {
	me, err := user.Current()
	if err != nil {
		return err
	}
	w, err := hdfs.NewClient(hdfs.ClientOptions{Addresses: s.Hadoop.RPCs(), User: me.Username})
	if err != nil {
		return err
	}
	return errors.Join(fn(w), w.Close())
}

// Attach gives the server that another process launched in dir, and waits until
// it answers.
func Attach(dir string) (*Server, error) {
	t, err := findTools()
	if err != nil {
		return nil, err
	}
	s, err := read(dir)
	if err != nil {
		return nil, fmt.Errorf("hivekit: no server in %s: %w", dir, err)
	}
	s.tools = t
	if s.Hadoop, err = hadoopkit.Attach(s.HadoopDir); err != nil {
		return nil, fmt.Errorf("hivekit: the Hadoop of the server in %s: %w", dir, err)
	}
	if err := s.Await(); err != nil {
		return nil, fmt.Errorf("%w\n`make hive-stop` and `make hive` start one anew", err)
	}
	return s, nil
}

func read(dir string) (*Server, error) {
	b, err := os.ReadFile(filepath.Join(dir, serverFile))
	if err != nil {
		return nil, err
	}
	s := &Server{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, serverFile), err)
	}
	return s, nil
}

// save writes what Attach needs.
func (s *Server) save() error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(s.Dir, serverFile+".tmp")
	if err := os.WriteFile(tmp, b, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(s.Dir, serverFile))
}

// Address is where HiveServer2 is reached, host and port.
func (s *Server) Address() string { return jvm.Local(s.Port) }

// WebUI is the URL of its web server, where the list of queries is.
func (s *Server) WebUI() string { return "http://" + jvm.Local(s.WebPort) }

// Log is the path of its log, over all of its processes.
func (s *Server) Log() string { return filepath.Join(s.Dir, "logs", "hive.log") }

// URL is the address on HDFS of a path below the server's directory there,
// which belongs to [User].
func (s *Server) URL(path string) string { return s.FS + s.Root + "/" + path }

// Stop kills the process if this one started it. It may be repeated.
func (s *Server) Stop() {
	s.mu.Lock()
	proc, starter := s.proc, s.starter
	s.proc, s.starter = nil, nil
	s.mu.Unlock()
	if proc != nil {
		proc.Kill()
	}
	if starter != nil {
		starter.Stop()
	}
}

// RemoveData removes what the server, which must be stopped, had on HDFS.
func (s *Server) RemoveData() error {
	return s.super(func(w *hdfs.Client) error { return w.RemoveAll(s.Root) })
}

// LogTail gives the last lines of every log, for messages.
func (s *Server) LogTail(lines int) string { return jvm.LogTail(filepath.Join(s.Dir, "logs"), lines) }

var errNotOurs = errors.New("this process did not start it")
