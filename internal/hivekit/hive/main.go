// Command hive starts the HiveServer2 that the tests share.
//
//	hive up          starts one that stays, beside the Hadoop of `hadoop up`,
//	                 and tells where it is
//	hive down        stops it
//	hive run CMD...  launches one, runs CMD meanwhile, and stops it; runs inside
//	                 of `hadoop run`
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/internal/hivekit"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "hive:", err)
	}
	os.Exit(code)
}

func run(args []string) (int, error) {
	dir, err := hivekit.DefaultDir()
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
	return 2, errors.New("usage: hive up | down | run COMMAND")
}

func failing(err error) (int, error) {
	if err != nil {
		return 1, err
	}
	return 0, nil
}

func tell(s *hivekit.Server) {
	fmt.Printf("%s (%s)\n%s\nexport %s=%s\n", s.Address(), s.Auth, s.WebUI(), hivekit.DirEnv, s.Dir)
}

func up(dir string) error {
	if s, err := hivekit.Attach(dir); err == nil {
		fmt.Println("Hive is running already")
		tell(s)
		return nil
	}
	// What a dead one left.
	if err := down(dir); err != nil {
		return err
	}
	c, err := hadoop()
	if err != nil {
		return err
	}
	o := hivekit.SharedOptions(c)
	o.Detached = true
	s, err := hivekit.Start(dir, o)
	if err != nil {
		return err
	}
	tell(s)
	return nil
}

// hadoop is the one that runs already.
func hadoop() (*hadoopkit.Cluster, error) {
	dir := os.Getenv(hadoopkit.DirEnv)
	if dir == "" {
		var err error
		if dir, err = hadoopkit.DefaultDir(); err != nil {
			return nil, err
		}
	}
	return hadoopkit.Attach(dir)
}

func down(dir string) error {
	if err := hivekit.StopDetached(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// with runs a command while a server comes up. One that runs already is used
// and left running.
func with(dir string, argv []string) (int, error) {
	if os.Getenv(hivekit.DirEnv) == "" {
		if _, err := hivekit.Attach(dir); err != nil {
			c, err := hadoop()
			if err != nil {
				return 1, err
			}
			tmp, err := os.MkdirTemp("", "commitstep-hive-")
			if err != nil {
				return 1, err
			}
			defer os.RemoveAll(tmp)
			// Those who use it wait for it; meanwhile the others are tested.
			s, err := hivekit.Launch(tmp, hivekit.SharedOptions(c))
			if err != nil {
				return 1, err
			}
			defer func() {
				s.Stop()
				_ = s.RemoveData() // of a Hadoop that may end as well
			}()
			dir = tmp
		}
		if err := os.Setenv(hivekit.DirEnv, dir); err != nil {
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
