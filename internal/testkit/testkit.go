// Package testkit starts the running test binary once more as a child process,
// so that a test can kill, freeze and thaw a real process at a chosen moment.
// It is for tests only. It must not know stores, steps or drivers: what a child
// does is a [Role] of the package under test.
//
//	func TestMain(m *testing.M) {
//		testkit.Children(testkit.Roles{"writer": writer}) // does not return in a child
//		goleak.VerifyTestMain(m)
//	}
//
//	func TestWriterDies(t *testing.T) {
//		t.Parallel()
//		p := testkit.Start(t, "writer", t.TempDir())
//		p.WaitLine("ready")
//		p.Kill()
//		...
//	}
//
// Parent and child talk in lines: the child with [Child.Say] and
// [Child.Hear], the parent with [Process.WaitLine] and [Process.Tell].
package testkit

import (
	"bufio"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// roleEnv names the role of a child; it is what makes a process one.
const roleEnv = "COMMITSTEP_TEST_ROLE"

// Role is what a child does. Its result is the exit code; an error from the
// work is best written to standard error, which the parent keeps.
type Role func(c *Child) int

// Roles of a test binary by name.
type Roles map[string]Role

// Child is the child's side of the conversation. It is used by one goroutine.
type Child struct {
	// Args are those given to Start.
	Args  []string
	lines chan string
}

// Children runs the role that this process was started for and exits, or
// returns at once when the process is not a child. Call it first in TestMain,
// before flags are parsed.
//
// A child ends with code 3 when its parent is gone, so that a killed test
// leaves nothing behind.
func Children(roles Roles) {
	name, ok := os.LookupEnv(roleEnv)
	if !ok {
		return
	}
	role := roles[name]
	if role == nil {
		fmt.Fprintf(os.Stderr, "testkit: this test binary has no role %q\n", name)
		os.Exit(2)
	}
	// A terminal's interrupt goes to the whole group; the parent decides.
	signal.Ignore(os.Interrupt)
	c := &Child{Args: os.Args[1:], lines: make(chan string)}
	go func() {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			c.lines <- in.Text()
		}
		os.Exit(3)
	}()
	os.Exit(role(c))
}

// Say writes one line to the parent. Newlines in the text become spaces.
func (c *Child) Say(format string, a ...any) {
	fmt.Println(strings.ReplaceAll(fmt.Sprintf(format, a...), "\n", " "))
}

// Fail writes the complaint to standard error and returns 1, for Role.
func (c *Child) Fail(format string, a ...any) int {
	fmt.Fprintf(os.Stderr, format+"\n", a...)
	return 1
}

// Hear waits for the next line that the parent tells.
func (c *Child) Hear() string { return <-c.lines }

// Die ends this process by SIGKILL: no deferred call runs, no buffer is
// flushed, no lock is released by code. It does not return.
func Die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
