package integration_test

import (
	"os"
	"testing"

	"github.com/commitstep/engine/internal/testkit"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	testkit.Children(testkit.Roles{
		"run":    runChild,
		"memory": memoryChild,
		"open":   openChild,
		"init":   initChild,
		"freeze": freezeChild,
	})
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if program.dir != "" {
			_ = os.RemoveAll(program.dir)
		}
		os.Exit(code)
	}))
}
