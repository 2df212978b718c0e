// Package jvm runs Java servers as processes of a test: where Java and the
// downloaded jars are, a process that can be killed and frozen and that ends
// with the one that started it, free ports, and the configuration files of
// Hadoop's family. What the servers are is known to the kits that use it.
package jvm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// CacheDir is where downloads are kept between checkouts.
func CacheDir() (string, error) {
	dir := os.Getenv("XDG_CACHE_HOME")
	if !filepath.IsAbs(dir) { // relative ones are not valid
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no cache directory: %w", err)
		}
		dir = filepath.Join(home, ".cache")
	}
	return filepath.Join(dir, "commitstep"), nil
}

// FindJava looks in JAVA_HOME, then in PATH.
func FindJava() (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java := filepath.Join(home, "bin", "java")
		if _, err := os.Stat(java); err == nil {
			return java, nil
		}
	}
	java, err := exec.LookPath("java")
	if err != nil {
		return "", fmt.Errorf("no java in %s", os.Getenv("PATH"))
	}
	return java, nil
}

// Java says how a class is run.
type Java struct {
	Program   string // the one of FindJava
	ClassPath string
	Heap      string // as -Xmx takes it
	// C2: the optimising compiler. Without it a start takes half of the
	// processor time, which is most of what a test needs.
	C2 bool
	// Opens are the packages of java.base that old code reaches into.
	Opens []string
	// Flags of the JVM, system properties among them.
	Flags []string
}

// Command runs class.
func (j Java) Command(class string, args ...string) *exec.Cmd {
	argv := []string{"-Xmx" + j.Heap, "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true"}
	if !j.C2 {
		argv = append(argv, "-XX:TieredStopAtLevel=1")
	}
	for _, p := range j.Opens {
		argv = append(argv, "--add-opens=java.base/"+p+"=ALL-UNNAMED")
	}
	argv = append(argv, j.Flags...)
	argv = append(argv, "-cp", j.ClassPath, class)
	cmd := exec.Command(j.Program, append(argv, args...)...)
	// What the user's own Hadoop is configured with must not leak in.
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "HADOOP_") && !strings.HasPrefix(e, "HDFS_") && !strings.HasPrefix(e, "HIVE_") && !strings.HasPrefix(e, "TEZ_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	return cmd
}
