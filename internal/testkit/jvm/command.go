package jvm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// Command is a program that keeps the server which tests share: `up` starts one
// that stays, `down` stops it, and `run COMMAND` has one while a command runs.
type Command struct {
	Name string // of the program
	What string // of the server, for people
	// DirEnv tells a command the directory of the server. Dir is where the one
	// that stays has it.
	DirEnv string
	Dir    func() (string, error)
	// Attach finds the running server of a directory, and says where it is.
	Attach func(dir string) (told string, err error)
	// Up starts a server that stays.
	Up func(dir string) (told string, err error)
	// Run starts a server of this process; it may still come up.
	Run func(dir string) (stop func(), err error)
	// Down stops the server of a directory, if there is one.
	Down func(dir string) error
}

// Main runs the program; its result is for os.Exit.
func (c Command) Main(args []string) int {
	code, err := c.run(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", c.Name, err)
	}
	return code
}

func (c Command) run(args []string) (int, error) {
	dir, err := c.Dir()
	if err != nil {
		return 1, err
	}
	switch {
	case len(args) == 1 && args[0] == "up":
		return failing(c.up(dir))
	case len(args) == 1 && args[0] == "down":
		return failing(c.down(dir))
	case len(args) > 1 && args[0] == "run":
		return c.with(dir, args[1:])
	}
	return 2, fmt.Errorf("usage: %s up | down | run COMMAND", c.Name)
}

func failing(err error) (int, error) {
	if err != nil {
		return 1, err
	}
	return 0, nil
}

func (c Command) up(dir string) error {
	if told, err := c.Attach(dir); err == nil {
		fmt.Printf("%s is running already\n%s\n", c.What, told)
		return nil
	}
	// What a dead one left.
	if err := c.down(dir); err != nil {
		return err
	}
	told, err := c.Up(dir)
	if err == nil {
		fmt.Println(told)
	}
	return err
}

func (c Command) down(dir string) error {
	if err := c.Down(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// with runs a command while a server is up. One that runs already is used and
// left running.
func (c Command) with(dir string, argv []string) (int, error) {
	if os.Getenv(c.DirEnv) == "" {
		if _, err := c.Attach(dir); err != nil {
			tmp, err := os.MkdirTemp("", "commitstep-"+c.Name+"-")
			if err != nil {
				return 1, err
			}
			defer os.RemoveAll(tmp)
			stop, err := c.Run(tmp)
			if err != nil {
				return 1, err
			}
			defer stop()
			dir = tmp
		}
		if err := os.Setenv(c.DirEnv, dir); err != nil {
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
