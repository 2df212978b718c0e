package fsrename

import (
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

// FreshFor is how long Execute relies on a look of Verify.
const FreshFor = freshFor

// KindAt is Kind with a clock.
func KindAt(now func() time.Time, files ...filesys.FS) commitstep.Kind { return kindAt(now, files...) }
