package integration_test

import (
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
	})
	goleak.VerifyTestMain(m)
}
