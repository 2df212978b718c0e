package hive_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/commitstep/engine/internal/hivekit/hivesql"
	"github.com/commitstep/engine/internal/testkit"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	testkit.Children(testkit.Roles{"run": runChild})
	if err := sideBySide(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	goleak.VerifyTestMain(hivesql.Main(m))
}

// sideBySide lets more tests run at a time than the machine has processors, unless
// somebody said how many: most of what they do is wait for a server.
func sideBySide() error {
	flag.Parse()
	const name = "test.parallel"
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == name })
	if asked {
		return nil
	}
	return flag.Set(name, "6")
}
