package hadoopkit

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/commitstep/engine/internal/testkit/jvm"
)

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
	d, err := c.starter.Start(cmd, c.detached)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.procs[r] = d
	c.Pids[r] = d.Pid()
	return c.save()
}

func (c *Cluster) await(r Role) error {
	c.mu.Lock()
	d := c.procs[r]
	c.mu.Unlock()
	if d == nil {
		return fmt.Errorf("%s: %w", r, errNotOurs)
	}
	if err := jvm.Await(d, func() bool { return c.Ready(r) }); err != nil {
		return fmt.Errorf("%s %w; its logs are in %s:\n%s", r, err, filepath.Join(c.Dir, "logs"), c.LogTail(15))
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
	return page(port, "/jmx?qry="+bean)
}

func accepts(port int) bool {
	conn, err := net.DialTimeout("tcp", jvm.Local(port), time.Second)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func (c *Cluster) daemon(r Role) (*jvm.Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.procs[r]; d != nil && d.Alive() {
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
	d.Kill()
	return nil
}

// Freeze stops a process (SIGSTOP) and waits until all its threads stand.
func (c *Cluster) Freeze(r Role) error {
	d, err := c.daemon(r)
	if err != nil {
		return err
	}
	if err := d.Freeze(); err != nil {
		return fmt.Errorf("hadoopkit: freeze %s: %w", r, err)
	}
	return nil
}

// Thaw lets a frozen process go on (SIGCONT).
func (c *Cluster) Thaw(r Role) error {
	d, err := c.daemon(r)
	if err != nil {
		return err
	}
	return d.Thaw()
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
		// The log's path is in the command line of ours.
		if err := jvm.KillPid(pid, filepath.Join(c.Dir, "logs", string(r)+".log")); err != nil {
			return fmt.Errorf("hadoopkit: stop %s (pid %d): %w", r, pid, err)
		}
	}
	return nil
}
