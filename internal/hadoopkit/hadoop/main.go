// Command hadoop starts the cluster that the tests share.
//
//	hadoop up          starts one that stays, and tells where it is
//	hadoop down        stops it
//	hadoop run CMD...  starts one, runs CMD with it, and stops it
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/commitstep/engine/internal/hadoopkit"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "hadoop:", err)
	}
	os.Exit(code)
}

func run(args []string) (int, error) {
	dir, err := hadoopkit.DefaultDir()
	if err != nil {
		return 1, err
	}
	switch {
	case len(args) == 1 && args[0] == "up":
		return failing(up(dir))
	case len(args) == 1 && args[0] == "down":
		return failing(down(dir))
	case len(args) > 1 && args[0] == "run":
		return with(dir, args[1:])
	}
	return 2, errors.New("usage: hadoop up | down | run COMMAND")
}

func failing(err error) (int, error) {
	if err != nil {
		return 1, err
	}
	return 0, nil
}

func tell(c *hadoopkit.Cluster) {
	fmt.Printf("hdfs://%s\n%s\nexport %s=%s\n", c.RPC(), c.WebHDFS(), hadoopkit.DirEnv, c.Dir)
}

func up(dir string) error {
	if c, err := hadoopkit.Attach(dir); err == nil {
		fmt.Println("Hadoop is running already")
		tell(c)
		return nil
	}
	// What a dead one left.
	if err := down(dir); err != nil {
		return err
	}
	c, err := hadoopkit.Start(dir, hadoopkit.Options{Detached: true})
	if err != nil {
		return err
	}
	tell(c)
	return nil
}

func down(dir string) error {
	if err := hadoopkit.StopDetached(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// with runs a command while a cluster is up. One that runs already is used and
// left running.
func with(dir string, argv []string) (int, error) {
	if os.Getenv(hadoopkit.DirEnv) == "" {
		if _, err := hadoopkit.Attach(dir); err != nil {
			tmp, err := os.MkdirTemp("", "commitstep-hadoop-")
			if err != nil {
				return 1, err
			}
			defer os.RemoveAll(tmp)
			c, err := hadoopkit.Start(tmp, hadoopkit.Options{})
			if err != nil {
				return 1, err
			}
			defer c.Stop()
			dir = tmp
		}
		if err := os.Setenv(hadoopkit.DirEnv, dir); err != nil {
			return 1, err
		}
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// The terminal sends an interrupt to the command too; this one stays to
	// clean up. Caught, not ignored: the command would inherit that.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(interrupts)
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return failing(err)
}
