package hivekit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

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

// keytool comes with every Java.
func (t tools) keytool() string { return filepath.Join(filepath.Dir(t.java), "keytool") }

// server is the JVM of a HiveServer2 in dir.
func (t tools) server(dir, conf, heap string) jvm.Java {
	return jvm.Java{
		Program: t.java,
		// Tez needs one class that only reload4j has; all others of log4j are
		// those that write through the log of Hive.
		ClassPath: conf + ":" + filepath.Join(t.lib, "log4j-1.2-api-2.18.0.jar") + ":" + t.lib + "/*",
		Heap:      heap,
		Opens: []string{
			"java.lang", "java.lang.reflect", "java.net", "java.util", "java.util.concurrent", "java.util.concurrent.atomic",
			"java.util.regex", "java.io", "java.nio", "java.time", "java.text", "java.math", "sun.nio.ch", "sun.security.action",
		},
		Flags: []string{
			// In the environment it would mean "for another user" as well.
			"-DHADOOP_USER_NAME=" + User,
			// A cache of results and more is put there.
			"-Djava.io.tmpdir=" + filepath.Join(dir, "tmp"),
			"-Dderby.stream.error.file=" + filepath.Join(dir, "logs", "derby.log"),
		},
	}
}
