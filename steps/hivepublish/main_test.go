package hivepublish

import (
	"testing"

	"github.com/commitstep/engine/internal/hivekit/hivesql"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(hivesql.Main(m)) }
