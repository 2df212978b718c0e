package hadoopkit

import (
	"os"
	"path/filepath"

	"github.com/commitstep/engine/internal/testkit/jvm"
)

// NameService is the name of the name service of a cluster with two name nodes.
const NameService = "ns"

// Users that exist besides the superuser, each in a group of its own name.
var Users = []string{"alice", "bob", "hive"}

// ports of a cluster, kept over restarts.
type ports struct {
	RPC, HTTP           [2]int // of the name nodes
	Data, DataWeb, DIPC int
}

const log4j = `log4j.rootLogger=${hadoop.root.logger}
log4j.appender.file=org.apache.log4j.FileAppender
log4j.appender.file.File=${hadoop.log.file}
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%p %c{2}: %m%n
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
`

// confDir of a role; clients and the data node share one.
func (c *Cluster) confDir(r Role) string {
	if r == NameNode || r == NameNode2 {
		return filepath.Join(c.Dir, "conf-"+string(r))
	}
	return filepath.Join(c.Dir, "conf")
}

// ConfDir is the directory of the client's Hadoop configuration files.
func (c *Cluster) ConfDir() string { return c.confDir(DataNode) }

func (c *Cluster) configure() error {
	for _, r := range []Role{NameNode, NameNode2, DataNode} {
		if r == NameNode2 && !c.HA {
			continue
		}
		dir := c.confDir(r)
		// The jars lack the pages that the servers show; without the folders
		// they do not start.
		for _, d := range []string{"hdfs", "datanode"} {
			if err := os.MkdirAll(filepath.Join(dir, "webapps", d), 0o755); err != nil {
				return err
			}
		}
		core, hdfs := c.properties(r)
		for _, err := range []error{
			core.Write(filepath.Join(dir, "core-site.xml")),
			hdfs.Write(filepath.Join(dir, "hdfs-site.xml")),
			os.WriteFile(filepath.Join(dir, "log4j.properties"), []byte(log4j), 0o644),
		} {
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Cluster) properties(r Role) (core, hdfs jvm.Properties) {
	groups := ""
	for _, u := range Users {
		groups += u + "=" + u + ";"
	}
	core = jvm.Properties{
		"fs.defaultFS":   "hdfs://" + jvm.Local(c.Ports.RPC[0]),
		"hadoop.tmp.dir": filepath.Join(c.Dir, "tmp"),
		"hadoop.user.group.static.mapping.overrides": groups,
		"hadoop.security.key.provider.path":          "jceks://file@" + filepath.Join(c.Dir, "keys.jceks"),
	}
	hdfs = jvm.Properties{
		"dfs.replication":                            "1",
		"dfs.blocksize":                              "1048576",
		"dfs.namenode.fs-limits.min-block-size":      "1024",
		"dfs.namenode.fs-limits.max-blocks-per-file": "100000",
		// Writable as soon as the data node is back, and not before.
		"dfs.safemode.extension":                                    "0",
		"dfs.namenode.safemode.min.datanodes":                       "1",
		"dfs.heartbeat.interval":                                    "1",
		"dfs.namenode.datanode.registration.ip-hostname-check":      "false",
		"dfs.datanode.hostname":                                     "127.0.0.1",
		"dfs.client.block.write.replace-datanode-on-failure.enable": "false",
		"dfs.namenode.handler.count":                                "20",
		"dfs.namenode.name.dir":                                     "file://" + filepath.Join(c.Dir, string(r)),
		"dfs.datanode.data.dir":                                     "file://" + filepath.Join(c.Dir, string(DataNode)),
		"dfs.datanode.address":                                      jvm.Local(c.Ports.Data),
		"dfs.datanode.http.address":                                 jvm.Local(c.Ports.DataWeb),
		"dfs.datanode.ipc.address":                                  jvm.Local(c.Ports.DIPC),
	}
	if !c.HA {
		hdfs["dfs.namenode.rpc-address"] = jvm.Local(c.Ports.RPC[0])
		hdfs["dfs.namenode.http-address"] = jvm.Local(c.Ports.HTTP[0])
		return core, hdfs
	}
	core["fs.defaultFS"] = "hdfs://" + NameService
	hdfs["dfs.nameservices"] = NameService
	hdfs["dfs.ha.namenodes."+NameService] = string(NameNode) + "," + string(NameNode2)
	for i, n := range []Role{NameNode, NameNode2} {
		hdfs["dfs.namenode.rpc-address."+NameService+"."+string(n)] = jvm.Local(c.Ports.RPC[i])
		hdfs["dfs.namenode.http-address."+NameService+"."+string(n)] = jvm.Local(c.Ports.HTTP[i])
	}
	hdfs["dfs.client.failover.proxy.provider."+NameService] = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
	hdfs["dfs.ha.fencing.methods"] = "shell(/bin/true)"
	hdfs["dfs.ha.automatic-failover.enabled"] = "false"
	hdfs["dfs.ha.tail-edits.period"] = "1s"
	hdfs["dfs.namenode.shared.edits.dir"] = "file://" + filepath.Join(c.Dir, "shared")
	if r != DataNode {
		hdfs["dfs.ha.namenode.id"] = string(r)
	}
	return core, hdfs
}
