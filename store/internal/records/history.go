package records

import (
	"strconv"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

// HistoryTail is what a history record says besides header and detail.
type HistoryTail struct {
	State         commitstep.State   `json:"state"`
	Ended         time.Time          `json:"ended"`
	Epoch         uint64             `json:"epoch"`
	Notes         store.HistoryNotes `json:"notes"`
	Message       string             `json:"message,omitempty"`
	CleanupReport string             `json:"cleanupReport,omitempty"`
}

// AppendHistoryTail writes the rest of a history record, without its opening brace.
func AppendHistoryTail(b []byte, t HistoryTail) ([]byte, error) {
	var err error
	b = append(b, `"state":`...)
	b = AppendText(b, string(t.State))
	b = append(b, `,"ended":`...)
	if b, err = AppendTime(b, t.Ended); err != nil {
		return nil, err
	}
	b = append(b, `,"epoch":`...)
	b = strconv.AppendUint(b, t.Epoch, 10)
	b = append(b, `,"notes":`...)
	if n := t.Notes; len(n.PartialVisible) > 0 || len(n.DeclaredPublished) > 0 {
		if b, err = AppendJSON(b, n); err != nil {
			return nil, err
		}
	} else {
		at := len(b)
		b = AppendCount(b, `,"already":`, n.Already)
		b = AppendCount(b, `,"executed":`, n.Executed)
		b = AppendCount(b, `,"recovers":`, n.Recovers)
		if n.Driver != "" {
			b = append(b, `,"driver":`...)
			b = AppendText(b, n.Driver)
		}
		if len(b) == at {
			b = append(b, '{')
		}
		b[at] = '{'
		b = append(b, '}')
	}
	if t.Message != "" {
		b = append(b, `,"message":`...)
		b = AppendText(b, t.Message)
	}
	if t.CleanupReport != "" {
		b = append(b, `,"cleanupReport":`...)
		b = AppendText(b, t.CleanupReport)
	}
	return append(b, '}'), nil
}
