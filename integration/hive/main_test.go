package hive_test

import (
	"testing"

	"github.com/commitstep/engine/internal/hivekit/hivesql"
	"github.com/commitstep/engine/internal/testkit"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	testkit.Children(testkit.Roles{"run": runChild})
	goleak.VerifyTestMain(hivesql.Main(m))
}
