package hivekit

import (
	"archive/zip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/commitstep/engine/internal/testkit/jvm"
)

// Version of Hive that the tests run, and which list of jars it was fetched
// with. scripts/hive.sh fetches the same.
const (
	Version  = "4.0.1"
	revision = "2"
)

// ErrAbsent says that Hive cannot be started on this machine, and how that is
// changed.
var ErrAbsent = errors.New("no Hive here: `make hive` fetches it (it needs Java and Maven, which `make setup` installs)")

// tools are what a server is started with.
type tools struct{ java, lib string }

// findTools looks for Java and the jars. The error wraps ErrAbsent when one of
// them is missing.
func findTools() (tools, error) {
	dir, err := jvm.CacheDir()
	if err != nil {
		return tools{}, fmt.Errorf("hivekit: %w", err)
	}
	t := tools{lib: filepath.Join(dir, "hive-"+Version+"-"+revision, "lib")}
	if _, err := os.Stat(filepath.Join(filepath.Dir(t.lib), ".complete")); err != nil {
		return t, fmt.Errorf("%w: no jars in %s", ErrAbsent, t.lib)
	}
	if t.java, err = jvm.FindJava(); err != nil {
		return t, fmt.Errorf("%w: %v", ErrAbsent, err)
	}
	return t, nil
}

// shipped is a jar with the one class whose jar Hive ships with every query.
func shipped(dir string) string { return filepath.Join(dir, "conf", "shipped.jar") }

// makeShipped makes it. From the jar of Hive, which would be taken otherwise, 83 MB go to
// HDFS once, and back for every vertex of every query; the tasks run in the server
// and have all of its classes.
func (t tools) makeShipped(dir string) (err error) {
	all, err := zip.OpenReader(filepath.Join(t.lib, "hive-exec-"+Version+".jar"))
	if err != nil {
		return err
	}
	defer all.Close()
	out, err := os.Create(shipped(dir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	w := zip.NewWriter(out)
	for _, f := range all.File {
		if strings.HasPrefix(f.Name, "org/apache/hadoop/hive/ql/exec/tez/DagUtils") {
			if err := w.Copy(f); err != nil {
				return err
			}
		}
	}
	return w.Close()
}

// keytool comes with every Java.
func (t tools) keytool() string { return filepath.Join(filepath.Dir(t.java), "keytool") }

// server is the JVM of a HiveServer2 in dir.
func (t tools) server(dir, conf, heap string) jvm.Java {
	return jvm.Java{
		Program: t.java,
		// Tez needs one class that only reload4j has; all others of log4j are
		// those that write through the log of Hive.
		ClassPath: conf + ":" + shipped(dir) + ":" + filepath.Join(t.lib, "log4j-1.2-api-2.18.0.jar") + ":" + t.lib + "/*",
		Heap:      heap,
		Opens: []string{
			"java.lang", "java.lang.reflect", "java.net", "java.util", "java.util.concurrent", "java.util.concurrent.atomic",
			"java.util.regex", "java.io", "java.nio", "java.time", "java.text", "java.math", "sun.nio.ch", "sun.security.action",
		},
		Flags: []string{
			// The default of C1 alone is full after a few hundred queries, and what
			// comes then is interpreted.
			"-XX:ReservedCodeCacheSize=128m",
			// Without Hadoop's native library every mode of a local file is set by a
			// process of its own.
			"-Djdk.lang.Process.launchMechanism=VFORK",
			// In the environment it would mean "for another user" as well.
			"-DHADOOP_USER_NAME=" + User,
			// A cache of results and more is put there.
			"-Djava.io.tmpdir=" + filepath.Join(dir, "tmp"),
			"-Dderby.stream.error.file=" + filepath.Join(dir, "logs", "derby.log"),
		},
	}
}
