package testkit_test

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/commitstep/engine/internal/testkit"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	testkit.Children(testkit.Roles{
		"echo": func(c *testkit.Child) int {
			c.Say("ready %s", strings.Join(c.Args, "|"))
			for {
				switch s := c.Hear(); s {
				case "bye":
					return 7
				case "die":
					testkit.Die()
				default:
					c.Say("heard %s", s)
				}
			}
		},
		"who":  func(c *testkit.Child) int { c.Say("uid %d", os.Getuid()); return 0 },
		"fail": func(c *testkit.Child) int { return c.Fail("no luck") },
	})
	goleak.VerifyTestMain(m)
}

func TestConversation(t *testing.T) {
	t.Parallel()
	p := testkit.Start(t, "echo", "a b", "-c")
	if got := p.WaitLine("ready"); got != "a b|-c" {
		t.Fatalf("arguments came as %q", got)
	}
	p.Tell("one")
	if got := p.Line(); got != "heard one" {
		t.Fatalf("got %q", got)
	}
	p.Tell("bye")
	if code, by := p.Exit(); code != 7 || by != 0 {
		t.Fatalf("ended with %d, signal %v", code, by)
	}
}

func TestKilledChildrenSaySo(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"die", "kill"} {
		p := testkit.Start(t, "echo")
		p.WaitLine("ready")
		if how == "die" {
			p.Tell("die")
		} else {
			p.Kill()
		}
		if code, by := p.Exit(); code != -1 || by != syscall.SIGKILL {
			t.Fatalf("%s: ended with %d, signal %v", how, code, by)
		}
	}
}

func TestFrozenChildSaysNothingUntilThawed(t *testing.T) {
	t.Parallel()
	p := testkit.Start(t, "echo")
	p.WaitLine("ready")
	p.Freeze()
	p.Tell("in the ice")
	b, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID()) + "/status")
	if err != nil || !strings.Contains(string(b), "T (stopped)") {
		t.Fatalf("the kernel does not call it stopped: %v\n%s", err, b)
	}
	if strings.Contains(p.Output(), "in the ice") {
		t.Fatal("a frozen child answered")
	}
	p.Thaw()
	if got := p.Line(); got != "heard in the ice" {
		t.Fatalf("got %q", got)
	}
}

func TestErrorsOfAChildAreKept(t *testing.T) {
	t.Parallel()
	p := testkit.Start(t, "fail")
	if code, _ := p.Exit(); code != 1 || !strings.Contains(p.Output(), "no luck") {
		t.Fatalf("code %d, output %q", code, p.Output())
	}
}

func TestAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root may start a child under another user")
	}
	p := testkit.StartWith(t, "who", nil, testkit.AsUser(65534, 65534))
	if got := p.WaitLine("uid"); got != "65534" {
		t.Fatalf("child runs as %s", got)
	}
}
