package hadoopkit

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/internal/testkit/jvm"
	"github.com/google/uuid"
)

// The processes of YARN.
const (
	ResourceManager Role = "rm"
	NodeManager     Role = "nm"
)

// YARN is a resource manager with one node manager on a cluster's HDFS, for
// MapReduce jobs. Safe for concurrent use.
type YARN struct {
	// Dir holds configuration, logs, and what containers work in.
	Dir string

	tools   tools
	home    string // of Java
	ports   yarnPorts
	staging string // in HDFS, of jobs
	starter *jvm.Starter
	mu      sync.Mutex
	procs   map[Role]*jvm.Process
}

type yarnPorts struct {
	apps, web, scheduler, tracker, admin int // of the resource manager
	node, nodeWeb, localizer, collector  int // of the node manager
	shuffle                              int
}

// StartYARN starts both on a cluster, also a shared one, for one test, and
// waits until the node is registered. They are stopped when the test ends;
// their logs are kept if it failed.
func StartYARN(t testing.TB, c *Cluster) *YARN {
	t.Helper()
	dir, err := os.MkdirTemp("", "commitstep-yarn-")
	if err != nil {
		t.Fatal(err)
	}
	y, err := newYARN(dir, c)
	t.Cleanup(func() {
		if y != nil {
			y.Stop()
			if err := c.Client(t, "root").RemoveAll(y.staging); err != nil {
				t.Error(err)
			}
		}
		cleanUp(dir, t.Failed(), func(s string) { t.Log(s) })
	})
	if errors.Is(err, ErrAbsent) {
		t.Skip(err)
	}
	if err == nil {
		err = y.start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return y
}

func newYARN(dir string, c *Cluster) (*YARN, error) {
	t, err := findJars("yarn")
	if err != nil {
		return nil, err
	}
	java, err := filepath.EvalSymlinks(t.java)
	if err != nil {
		return nil, fmt.Errorf("hadoopkit: %w", err)
	}
	y := &YARN{Dir: dir, tools: t, home: filepath.Dir(filepath.Dir(java)), staging: "/yarn-" + uuid.NewString(), starter: jvm.NewStarter(), procs: map[Role]*jvm.Process{}}
	p := &y.ports
	err = jvm.FreePorts(&p.apps, &p.web, &p.scheduler, &p.tracker, &p.admin, &p.node, &p.nodeWeb, &p.localizer, &p.collector, &p.shuffle)
	return y, errors.Join(err, y.configure(c))
}

// ConfDir is the directory of the configuration files, for clients too.
func (y *YARN) ConfDir() string { return filepath.Join(y.Dir, "conf") }

func (y *YARN) configure(c *Cluster) error {
	conf := y.ConfDir()
	for _, d := range []string{conf, filepath.Join(y.Dir, "logs")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	core, hdfs := c.properties(DataNode)
	core["hadoop.tmp.dir"] = filepath.Join(y.Dir, "tmp")
	// Containers read the directory itself: they are other processes.
	classes := conf + "," + y.tools.lib + "/*"
	p := y.ports
	yarn := jvm.Properties{
		"yarn.resourcemanager.hostname":                           "127.0.0.1",
		"yarn.resourcemanager.address":                            jvm.Local(p.apps),
		"yarn.resourcemanager.webapp.address":                     jvm.Local(p.web),
		"yarn.resourcemanager.scheduler.address":                  jvm.Local(p.scheduler),
		"yarn.resourcemanager.resource-tracker.address":           jvm.Local(p.tracker),
		"yarn.resourcemanager.admin.address":                      jvm.Local(p.admin),
		"yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "200",
		"yarn.nodemanager.hostname":                               "127.0.0.1",
		"yarn.nodemanager.address":                                jvm.Local(p.node),
		"yarn.nodemanager.webapp.address":                         jvm.Local(p.nodeWeb),
		"yarn.nodemanager.localizer.address":                      jvm.Local(p.localizer),
		"yarn.nodemanager.collector-service.address":              jvm.Local(p.collector),
		"yarn.nodemanager.local-dirs":                             filepath.Join(y.Dir, "containers"),
		"yarn.nodemanager.log-dirs":                               filepath.Join(y.Dir, "logs", "containers"),
		"yarn.nodemanager.aux-services":                           "mapreduce_shuffle",
		"yarn.nodemanager.aux-services.mapreduce_shuffle.class":   "org.apache.hadoop.mapred.ShuffleHandler",
		"yarn.nodemanager.env-whitelist":                          "JAVA_HOME,HADOOP_CONF_DIR,PATH,LANG,TZ",
		"yarn.nodemanager.resource.memory-mb":                     "4096",
		"yarn.nodemanager.resource.cpu-vcores":                    "8",
		"yarn.nodemanager.vmem-check-enabled":                     "false",
		"yarn.nodemanager.pmem-check-enabled":                     "false",
		"yarn.nodemanager.disk-health-checker.enable":             "false",
		"yarn.scheduler.minimum-allocation-mb":                    "128",
		"yarn.scheduler.maximum-allocation-mb":                    "4096",
		"yarn.application.classpath":                              classes,
		"yarn.nodemanager.disk-health-checker.min-healthy-disks":  "0",
		"yarn.resourcemanager.am.max-attempts":                    "2",
		"yarn.nodemanager.container-monitor.enabled":              "false",
	}
	small := "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
	mapred := jvm.Properties{
		"mapreduce.framework.name":                              "yarn",
		"mapreduce.application.classpath":                       classes,
		"mapreduce.shuffle.port":                                strconv.Itoa(p.shuffle),
		"mapreduce.map.memory.mb":                               "256",
		"mapreduce.map.java.opts":                               "-Xmx128m " + small,
		"mapreduce.reduce.memory.mb":                            "256",
		"mapreduce.reduce.java.opts":                            "-Xmx128m " + small,
		"mapreduce.task.io.sort.mb":                             "16",
		"mapreduce.map.speculative":                             "false", // mappers may have effects
		"mapreduce.client.progressmonitor.pollinterval":         "200",
		"mapreduce.client.completion.pollinterval":              "200",
		"yarn.app.mapreduce.am.resource.mb":                     "384",
		"yarn.app.mapreduce.am.command-opts":                    "-Xmx200m --add-opens=java.base/java.lang=ALL-UNNAMED " + small,
		"yarn.app.mapreduce.am.scheduler.heartbeat.interval-ms": "200",
		"yarn.app.mapreduce.am.staging-dir":                     y.staging,
	}
	// The jars hold no default for the queues.
	queues := jvm.Properties{
		"yarn.scheduler.capacity.root.queues":                 "default",
		"yarn.scheduler.capacity.root.default.capacity":       "100",
		"yarn.scheduler.capacity.maximum-am-resource-percent": "0.5",
	}
	for name, p := range map[string]jvm.Properties{"core-site": core, "hdfs-site": hdfs, "yarn-site": yarn, "mapred-site": mapred, "capacity-scheduler": queues} {
		if err := p.Write(filepath.Join(conf, name+".xml")); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(conf, "log4j.properties"), []byte(log4j), 0o644)
}

func (y *YARN) start() error {
	// Together: each spends seconds on loading classes.
	for _, r := range []Role{ResourceManager, NodeManager} {
		if err := y.launch(r); err != nil {
			return err
		}
	}
	return errors.Join(y.await(ResourceManager), y.await(NodeManager))
}

// StartRole starts one of them again, and waits until it is ready.
func (y *YARN) StartRole(r Role) error {
	if err := y.launch(r); err != nil {
		return err
	}
	return y.await(r)
}

func (y *YARN) launch(r Role) error {
	class := map[Role]string{ResourceManager: "resourcemanager.ResourceManager", NodeManager: "nodemanager.NodeManager"}[r]
	if class == "" {
		return fmt.Errorf("hadoopkit: %s is no process of YARN", r)
	}
	out, err := os.OpenFile(filepath.Join(y.Dir, "logs", string(r)+".out"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	log := filepath.Join(y.Dir, "logs", string(r)+".log")
	cmd := y.tools.command(y.ConfDir(), "256m", false, []string{"-Dhadoop.root.logger=INFO,file", "-Dhadoop.log.file=" + log}, "org.apache.hadoop.yarn.server."+class)
	cmd.Env = append(cmd.Env, y.environment()...)
	cmd.Stdout, cmd.Stderr = out, out
	p, err := y.starter.Start(cmd, false)
	if err != nil {
		return err
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	y.procs[r] = p
	return nil
}

func (y *YARN) environment() []string {
	return []string{"HADOOP_CONF_DIR=" + y.ConfDir(), "JAVA_HOME=" + y.home}
}

func (y *YARN) await(r Role) error {
	y.mu.Lock()
	p := y.procs[r]
	y.mu.Unlock()
	err := jvm.Await(p, func() bool { return y.Ready(r) })
	if err != nil {
		return fmt.Errorf("hadoopkit: %s %w; its logs are in %s:\n%s", r, err, filepath.Join(y.Dir, "logs"), jvm.LogTail(filepath.Join(y.Dir, "logs"), 15))
	}
	return nil
}

// Ready reports whether the resource manager serves, or the node manager is
// healthy and registered as running.
func (y *YARN) Ready(r Role) bool {
	if r == ResourceManager {
		return strings.Contains(page(y.ports.web, "/ws/v1/cluster/info"), "STARTED")
	}
	return strings.Contains(page(y.ports.nodeWeb, "/ws/v1/node/info"), `"nodeHealthy":true`) && strings.Contains(y.Nodes(), `"state":"RUNNING"`)
}

// Nodes is what the resource manager tells of its nodes, as JSON.
func (y *YARN) Nodes() string { return page(y.ports.web, "/ws/v1/cluster/nodes") }

func page(port int, path string) string {
	// Its own transport: no connection stays behind.
	client := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + jvm.Local(port) + path)
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

// Kill ends one of them by SIGKILL and waits until it is gone. Containers of a
// node manager live on, as they do in production.
func (y *YARN) Kill(r Role) error {
	y.mu.Lock()
	p := y.procs[r]
	y.mu.Unlock()
	if p == nil || !p.Alive() {
		return fmt.Errorf("hadoopkit: %s: %w, or it has ended", r, errNotOurs)
	}
	p.Kill()
	return nil
}

// Streaming runs a job of Hadoop Streaming to its end and returns what it
// printed. Half a minute each.
func (y *YARN) Streaming(args ...string) (string, error) {
	cmd := y.tools.command(y.ConfDir(), "256m", false, []string{"-Dhadoop.root.logger=INFO,console"}, "org.apache.hadoop.streaming.HadoopStreaming", args...)
	cmd.Env = append(cmd.Env, y.environment()...)
	return y.starter.Run(cmd)
}

// Stop kills both and the containers that are left. It may be repeated.
func (y *YARN) Stop() {
	y.mu.Lock()
	procs := maps.Clone(y.procs)
	clear(y.procs)
	y.mu.Unlock()
	for _, p := range procs {
		p.Kill()
	}
	if y.starter != nil {
		y.starter.Stop()
		y.starter = nil
	}
	// Containers are in sessions of their own; each names its directory.
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() {
			_ = jvm.KillPid(pid, filepath.Join(y.Dir, "containers")) // gone, or not ours
		}
	}
}
