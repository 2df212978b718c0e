package hadoopkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Version of Hadoop that the tests run. scripts/hadoop.sh fetches the same.
const Version = "3.4.2"

// ErrAbsent says that Hadoop cannot be started on this machine, and how that is
// changed.
var ErrAbsent = errors.New("no Hadoop here: `make hadoop` fetches it (it needs Java and Maven, which `make setup` installs)")

// cacheDir is where downloads are kept between checkouts.
func cacheDir() (string, error) {
	dir := os.Getenv("XDG_CACHE_HOME")
	if !filepath.IsAbs(dir) { // relative ones are not valid
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("hadoopkit: no cache directory: %w", err)
		}
		dir = filepath.Join(home, ".cache")
	}
	return filepath.Join(dir, "commitstep"), nil
}

// tools are what every process of a cluster is started with.
type tools struct{ java, lib string }

// findTools looks for Java and the jars. The error wraps ErrAbsent when one of
// them is missing.
func findTools() (tools, error) {
	dir, err := cacheDir()
	if err != nil {
		return tools{}, err
	}
	t := tools{lib: filepath.Join(dir, "hadoop-"+Version+"-hdfs", "lib")}
	if _, err := os.Stat(filepath.Join(filepath.Dir(t.lib), ".complete")); err != nil {
		return t, fmt.Errorf("%w: no jars in %s", ErrAbsent, t.lib)
	}
	if home := os.Getenv("JAVA_HOME"); home != "" {
		t.java = filepath.Join(home, "bin", "java")
		if _, err := os.Stat(t.java); err == nil {
			return t, nil
		}
	}
	if t.java, err = exec.LookPath("java"); err != nil {
		return t, fmt.Errorf("%w: no java in %s", ErrAbsent, os.Getenv("PATH"))
	}
	return t, nil
}

// command is a JVM that runs class with the configuration in conf.
func (t tools) command(conf, heap string, c2 bool, props []string, class string, args ...string) *exec.Cmd {
	argv := []string{"-Xmx" + heap, "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true"}
	if !c2 {
		// Halves the processor time of a start, which is most of what a test needs.
		argv = append(argv, "-XX:TieredStopAtLevel=1")
	}
	for _, p := range []string{"java.lang", "java.util", "java.net", "java.nio", "java.util.concurrent"} {
		argv = append(argv, "--add-opens=java.base/"+p+"=ALL-UNNAMED")
	}
	argv = append(argv, props...)
	argv = append(argv, "-cp", conf+":"+t.lib+"/*", class)
	cmd := exec.Command(t.java, append(argv, args...)...)
	// What the user's own Hadoop is configured with must not leak in.
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "HADOOP_") && !strings.HasPrefix(e, "HDFS_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	return cmd
}
