package hivekit

import (
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/internal/testkit/jvm"
)

// Auth is how a client says who it is.
type Auth string

// The ways that need no other server.
const (
	// Plain is Hive's NONE: SASL PLAIN, every user with every password.
	Plain Auth = "NONE"
	// NoSASL: no word about it.
	NoSASL Auth = "NOSASL"
)

// User is who the server is on HDFS: not the superuser, so that files can be
// forbidden to it.
const User = "hive"

// Options of a server. The zero value is an ordinary one: SASL PLAIN over the
// binary transport.
type Options struct {
	// Hadoop holds the warehouse; nil in [Private] is the shared one.
	Hadoop *hadoopkit.Cluster
	Auth   Auth // "" is Plain
	// HTTP transport instead of the binary one, at the path HTTPPath.
	HTTP bool
	// TLS with a certificate of its own, see [Server.TLS].
	TLS bool
	// AsyncThreads run statements; 0 is the default of Hive, 100. With one, and
	// a statement that takes its time, the pool is full.
	AsyncThreads int
	// AsyncQueue is how many statements wait for a thread; 0 is Hive's, 100.
	AsyncQueue int
	// AsyncCompile: compile in the background as well, so that errors of a
	// statement's text come with its status.
	AsyncCompile bool
	// IdleSession ends sessions without statements that nobody used for so
	// long, IdleOperation statements; 0 is never in a test's time. The server
	// looks every 3 s.
	IdleSession, IdleOperation time.Duration
	// Properties are added to the server's, or replace them.
	Properties map[string]string
	// Heap of the process; "" is 1g.
	Heap string
	// Detached: the process outlives this one.
	Detached bool
}

// HTTPPath is where the HTTP transport is served.
const HTTPPath = "cliservice"

const log4j2 = `status = ERROR
name = HiveServer2
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p [%t] %c{2}: %m%n
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
logger.datanucleus.name = DataNucleus
logger.datanucleus.level = ERROR
`

func (s *Server) confDir() string { return filepath.Join(s.Dir, "conf") }

// configure writes the configuration and makes the directories that the server
// does not make itself.
func (s *Server) configure(o Options) error {
	for _, d := range []string{"conf", "logs", "tmp"} {
		if err := os.MkdirAll(filepath.Join(s.Dir, d), 0o755); err != nil {
			return err
		}
	}
	// Under these names only does HiveServer2 leave them alone.
	for _, f := range []string{"hive-log4j2.properties", "hive-exec-log4j2.properties"} {
		if err := os.WriteFile(filepath.Join(s.confDir(), f), []byte(log4j2), 0o644); err != nil {
			return err
		}
	}
	return s.properties(o).Write(filepath.Join(s.confDir(), "hive-site.xml"))
}

func (s *Server) properties(o Options) jvm.Properties {
	local := func(name string) string { return filepath.Join(s.Dir, name) }
	remote := func(name string) string { return s.FS + s.Root + "/" + name }
	p := jvm.Properties{
		"fs.defaultFS":   s.FS,
		"hadoop.tmp.dir": local("tmp/hadoop"),
		// Data nodes register under this name.
		"dfs.client.use.datanode.hostname": "true",
		"dfs.replication":                  "1",
		// How long a writer waits, when it closes a file, before it asks again whether
		// the data node has told of the last block. Nearly every file is asked for once
		// more, and 400 ms each time were a third of a query.
		"dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "5",

		"hive.metastore.warehouse.dir":          remote("warehouse"),
		"hive.metastore.warehouse.external.dir": remote("external"),
		"hive.exec.scratchdir":                  remote("scratch"),
		"hive.user.install.directory":           remote("install"),
		"tez.staging-dir":                       remote("tez"),
		"hive.exec.local.scratchdir":            local("tmp/scratch"),
		// Of each session its own: the directory is removed when a session is closed, and
		// another that was being opened failed then.
		"hive.downloaded.resources.dir":                 local("tmp/${hive.session.id}_resources"),
		"hive.querylog.location":                        local("tmp/querylog"),
		"hive.server2.logging.operation.log.location":   local("tmp/operations"),
		"javax.jdo.option.ConnectionURL":                "jdbc:derby:;databaseName=" + local("metastore") + ";create=true",
		"javax.jdo.option.ConnectionDriverName":         "org.apache.derby.jdbc.EmbeddedDriver",
		"javax.jdo.option.ConnectionUserName":           "APP",
		"javax.jdo.option.ConnectionPassword":           "mine",
		"datanucleus.schema.autoCreateAll":              "true",
		"hive.metastore.schema.verification":            "false",
		"hive.metastore.event.db.notification.api.auth": "false",
		"hive.notification.event.poll.interval":         "0",
		"hive.scheduled.queries.executor.enabled":       "false",
		"hive.compactor.initiator.on":                   "false",
		"hive.server2.materializedviews.registry.impl":  "DUMMY",
		"hive.server2.enable.doAs":                      "false",
		"hive.security.authorization.enabled":           "false",
		"hive.server2.thrift.bind.host":                 "127.0.0.1",
		"hive.server2.webui.host":                       "127.0.0.1",
		"hive.server2.webui.port":                       strconv.Itoa(s.WebPort),
		"hive.server2.tez.initialize.default.sessions":  "false",
		"hive.server2.async.exec.async.compile":         strconv.FormatBool(o.AsyncCompile),
		"hive.server2.authentication":                   string(s.Auth),
		"hive.execution.engine":                         "tez",
		"mapreduce.framework.name":                      "local",
		"tez.local.mode":                                "true",
		"tez.local.mode.without.network":                "true",
		"tez.runtime.optimize.local.fetch":              "true",
		"tez.ignore.lib.uris":                           "true",
		"tez.runtime.io.sort.mb":                        "16",
		// Tez has as many slots here as it can count, so it would read every file by a
		// task of its own, however small.
		"tez.grouping.split-count":                "1",
		"tez.dag.recovery.enabled":                "false", // of a Tez that ends with the server
		"tez.history.logging.service.class":       "org.apache.tez.dag.history.logging.impl.DevNullHistoryLoggingService",
		"hive.tez.container.size":                 "128",
		"hive.tez.java.opts":                      "-Xmx128m",
		"hive.exec.dynamic.partition.mode":        "nonstrict",
		"hive.stats.autogather":                   "true",
		"hive.stats.column.autogather":            "false",
		"hive.query.results.cache.enabled":        "false",
		"hive.support.concurrency":                "false",
		"hive.txn.manager":                        "org.apache.hadoop.hive.ql.lockmgr.DummyTxnManager",
		"hive.server2.webui.max.historic.queries": "1000", // tests count statements in this list

		// A start that fails ends the process, with its reason in the log.
		"hive.server2.max.start.attempts": "1",
		// A KILL QUERY asks YARN, which is not there, for jobs of the query, and
		// by default asks for ten minutes.
		"yarn.resourcemanager.connect.max-wait.ms":       "1",
		"yarn.resourcemanager.connect.retry-interval.ms": "1",
		"ipc.client.connect.max.retries":                 "0",
	}
	if s.HTTP {
		p["hive.server2.transport.mode"] = "http"
		p["hive.server2.thrift.http.port"] = strconv.Itoa(s.Port)
		p["hive.server2.thrift.http.path"] = HTTPPath
	} else {
		p["hive.server2.transport.mode"] = "binary"
		p["hive.server2.thrift.port"] = strconv.Itoa(s.Port)
	}
	if s.Cert != "" {
		p["hive.server2.use.SSL"] = "true"
		p["hive.server2.keystore.path"] = s.keystore()
		p["hive.server2.keystore.password"] = keystorePassword
		p["hive.server2.keystore.type"] = "PKCS12"
	}
	if o.AsyncThreads > 0 {
		p["hive.server2.async.exec.threads"] = strconv.Itoa(o.AsyncThreads)
	}
	if o.AsyncQueue > 0 {
		p["hive.server2.async.exec.wait.queue.size"] = strconv.Itoa(o.AsyncQueue)
	}
	idle := func(d time.Duration) string {
		if d == 0 {
			d = 24 * time.Hour
		}
		return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	}
	p["hive.server2.idle.session.timeout"] = idle(o.IdleSession)
	p["hive.server2.idle.operation.timeout"] = idle(o.IdleOperation)
	p["hive.server2.session.check.interval"] = "3s" // less is refused
	maps.Copy(p, o.Properties)
	return p
}
