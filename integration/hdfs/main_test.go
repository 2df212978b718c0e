package hdfs_test

import (
	"testing"

	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/internal/testkit"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	testkit.Children(testkit.Roles{"run": runChild})
	goleak.VerifyTestMain(hadoopkit.Main(m))
}
