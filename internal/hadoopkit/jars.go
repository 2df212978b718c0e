package hadoopkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/commitstep/engine/internal/testkit/jvm"
)

// Version of Hadoop that the tests run. scripts/hadoop.sh fetches the same.
const Version = "3.4.2"

// ErrAbsent says that Hadoop cannot be started on this machine, and how that is
// changed.
var ErrAbsent = errors.New("no Hadoop here: `make hadoop` fetches it (it needs Java and Maven, which `make setup` installs)")

// tools are what every process of a cluster is started with.
type tools struct{ java, lib string }

// findTools looks for Java and the jars of HDFS. The error wraps ErrAbsent when
// one of them is missing.
func findTools() (tools, error) { return findJars("hdfs") }

// findJars is findTools for one of the sets that scripts/hadoop.sh fetches.
func findJars(set string) (tools, error) {
	dir, err := jvm.CacheDir()
	if err != nil {
		return tools{}, err
	}
	t := tools{lib: filepath.Join(dir, "hadoop-"+Version+"-"+set, "lib")}
	if _, err := os.Stat(filepath.Join(filepath.Dir(t.lib), ".complete")); err != nil {
		return t, fmt.Errorf("%w: no jars in %s", ErrAbsent, t.lib)
	}
	if t.java, err = jvm.FindJava(); err != nil {
		return t, fmt.Errorf("%w: %v", ErrAbsent, err)
	}
	return t, nil
}

// command is a JVM that runs class with the configuration in conf.
func (t tools) command(conf, heap string, c2 bool, props []string, class string, args ...string) *exec.Cmd {
	return jvm.Java{
		Program:   t.java,
		ClassPath: conf + ":" + t.lib + "/*",
		Heap:      heap,
		C2:        c2,
		Opens:     []string{"java.lang", "java.util", "java.net", "java.nio", "java.util.concurrent"},
		Flags:     props,
	}.Command(class, args...)
}
