package hadoopkit

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/commitstep/engine/internal/testkit/jvm"
)

// Role is one process of a cluster.
type Role string

// The processes. NameNode2 exists in a cluster with failover only.
const (
	NameNode  Role = "nn"
	NameNode2 Role = "nn2"
	DataNode  Role = "dn"
)

// Options of a cluster.
type Options struct {
	// HA: two name nodes of one name service, the first one active, with the
	// edits shared through a directory.
	HA bool
	// C2: the optimising compiler, for benchmarks. Costs seconds per start.
	C2 bool
	// Key: make the encryption key "key", for zones.
	Key bool
	// Heap of each process; "" is 256m.
	Heap string
	// Detached processes outlive this one.
	Detached bool
}

// Cluster is a running Hadoop, or one that was started by another process.
// Safe for concurrent use, but a signal to a process of a shared cluster hits
// every other test too.
type Cluster struct {
	Dir   string
	Ports ports
	HA    bool
	C2    bool
	Heap  string
	// Pids by role, of those that were started.
	Pids map[Role]int

	detached bool
	tools    tools
	mu       sync.Mutex
	procs    map[Role]*jvm.Process
	starter  *jvm.Starter
}

const clusterFile = "cluster.json"

// Start makes a cluster in dir, which must be absent or empty, and waits until
// it can be written to. Stop ends it.
func Start(dir string, o Options) (*Cluster, error) {
	t, err := findTools()
	if err != nil {
		return nil, err
	}
	if o.Heap == "" {
		o.Heap = "256m"
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("hadoopkit: %w", err)
	}
	c := &Cluster{Dir: dir, HA: o.HA, C2: o.C2, Heap: o.Heap, Pids: map[Role]int{}, detached: o.Detached, tools: t, procs: map[Role]*jvm.Process{}, starter: jvm.NewStarter()}
	if err := c.start(o); err != nil {
		c.Stop()
		return nil, fmt.Errorf("hadoopkit: start in %s: %w", dir, err)
	}
	return c, nil
}

func (c *Cluster) start(o Options) error {
	if err := os.MkdirAll(filepath.Join(c.Dir, "logs"), 0o755); err != nil {
		return err
	}
	p := &c.Ports
	if err := jvm.FreePorts(&p.RPC[0], &p.RPC[1], &p.HTTP[0], &p.HTTP[1], &p.Data, &p.DataWeb, &p.DIPC); err != nil {
		return err
	}
	if err := c.configure(); err != nil {
		return err
	}
	if o.Key {
		if _, err := c.Admin("org.apache.hadoop.crypto.key.KeyShell", "create", "key", "-size", "128"); err != nil {
			return err
		}
	}
	if _, err := c.tool(NameNode, classOf(NameNode), "-format", "-nonInteractive", "-force"); err != nil {
		return err
	}
	if !c.HA {
		// Together: each spends seconds on loading classes.
		for _, r := range []Role{NameNode, DataNode} {
			if err := c.launch(r); err != nil {
				return err
			}
		}
		if err := c.await(NameNode); err != nil {
			return err
		}
		return c.await(DataNode)
	}
	if err := c.StartRole(NameNode); err != nil {
		return err
	}
	if _, err := c.tool(NameNode2, classOf(NameNode2), "-bootstrapStandby", "-nonInteractive"); err != nil {
		return err
	}
	for _, r := range []Role{NameNode2, DataNode} {
		if err := c.launch(r); err != nil {
			return err
		}
	}
	if err := c.await(NameNode2); err != nil {
		return err
	}
	if err := c.Activate(NameNode, false); err != nil {
		return err
	}
	return c.await(DataNode)
}

// Attach gives the running cluster that another process started in dir.
func Attach(dir string) (*Cluster, error) {
	t, err := findTools()
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(dir, clusterFile))
	if err != nil {
		return nil, fmt.Errorf("hadoopkit: no cluster in %s: %w", dir, err)
	}
	c := &Cluster{tools: t}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("hadoopkit: %s: %w", filepath.Join(dir, clusterFile), err)
	}
	if !c.Ready(NameNode) || !c.Ready(DataNode) {
		return nil, fmt.Errorf("hadoopkit: the cluster in %s does not answer; `make hadoop-stop` and `make hadoop` start it anew", dir)
	}
	return c, nil
}

// save writes what Attach needs.
func (c *Cluster) save() error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(c.Dir, clusterFile+".tmp")
	if err := os.WriteFile(tmp, b, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(c.Dir, clusterFile))
}

// RPC is the first name node's RPC address; RPCs are all.
func (c *Cluster) RPC() string { return jvm.Local(c.Ports.RPC[0]) }

// RPCs are the RPC addresses of all name nodes.
func (c *Cluster) RPCs() []string {
	if !c.HA {
		return []string{c.RPC()}
	}
	return []string{jvm.Local(c.Ports.RPC[0]), jvm.Local(c.Ports.RPC[1])}
}

// HTTP is the first name node's HTTP address.
func (c *Cluster) HTTP() string { return jvm.Local(c.Ports.HTTP[0]) }

// HTTPs are the HTTP addresses of all name nodes.
func (c *Cluster) HTTPs() []string {
	if !c.HA {
		return []string{c.HTTP()}
	}
	return []string{jvm.Local(c.Ports.HTTP[0]), jvm.Local(c.Ports.HTTP[1])}
}

// WebHDFS is the URL of the first name node's file system.
func (c *Cluster) WebHDFS() string { return "http://" + c.HTTP() + "/webhdfs/v1" }

// Stop kills all processes that this one started. It may be repeated.
func (c *Cluster) Stop() {
	c.mu.Lock()
	procs := c.procs
	c.procs = map[Role]*jvm.Process{}
	c.mu.Unlock()
	for _, d := range procs {
		d.Kill()
	}
	if c.starter != nil {
		c.starter.Stop()
		c.starter = nil
	}
}

// LogTail gives the last lines of every log, for messages.
func (c *Cluster) LogTail(lines int) string {
	return jvm.LogTail(filepath.Join(c.Dir, "logs"), lines)
}

// Admin runs a command line class of Hadoop to its end with the client's
// configuration and returns what it printed. About a second each.
func (c *Cluster) Admin(class string, args ...string) (string, error) {
	return c.tool(DataNode, class, args...)
}

// DFSAdmin is Admin for dfsadmin commands: quotas, safe mode.
func (c *Cluster) DFSAdmin(args ...string) (string, error) {
	return c.Admin("org.apache.hadoop.hdfs.tools.DFSAdmin", args...)
}

// Crypto is Admin for encryption zones.
func (c *Cluster) Crypto(args ...string) (string, error) {
	return c.Admin("org.apache.hadoop.hdfs.tools.CryptoAdmin", args...)
}

// Activate makes a name node the active one; force also while the other does
// not answer.
func (c *Cluster) Activate(r Role, force bool) error {
	args := []string{"-transitionToActive"}
	if force {
		args = append(args, "--forceactive")
	}
	_, err := c.Admin("org.apache.hadoop.hdfs.tools.DFSHAAdmin", append(args, string(r))...)
	return err
}

// Standby makes a name node a standby.
func (c *Cluster) Standby(r Role) error {
	_, err := c.Admin("org.apache.hadoop.hdfs.tools.DFSHAAdmin", "-transitionToStandby", string(r))
	return err
}

func (c *Cluster) tool(r Role, class string, args ...string) (string, error) {
	cmd := c.tools.command(c.confDir(r), "256m", false, []string{"-Dhadoop.root.logger=WARN,console"}, class, args...)
	s := c.starter
	if s == nil { // an attached cluster has none
		s = jvm.NewStarter()
		defer s.Stop()
	}
	return s.Run(cmd)
}

var errNotOurs = errors.New("this process did not start it")
