package boltstore

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// The records of every single sequence are written without reflection, since
// thousands of them are put and completed in a second. Tests hold that they
// decode to what was encoded, with every field set.

// appendHeaderJSON writes h as encoding/json would.
func appendHeaderJSON(b []byte, h *commitstep.Header) ([]byte, error) {
	var err error
	b = append(b, `{"id":`...)
	b = appendUUID(b, h.ID)
	b = append(b, `,"job":`...)
	b = appendText(b, h.Job)
	b = append(b, `,"dataset":`...)
	b = appendText(b, h.Dataset)
	if h.PlanID != "" {
		b = append(b, `,"planId":`...)
		b = appendText(b, h.PlanID)
	}
	b = append(b, `,"planHash":`...)
	b = appendText(b, h.PlanHash)
	b = append(b, `,"created":`...)
	if b, err = appendTime(b, h.Created); err != nil {
		return nil, err
	}
	b = appendInt(b, `,"steps":`, h.Steps)
	b = appendInt(b, `,"stages":`, h.Stages)
	if h.PageSize != 0 {
		b = appendInt(b, `,"pageSize":`, h.PageSize)
	}
	b = appendInt(b, `,"firstWatermark":`, h.FirstWatermark)
	for _, part := range [...]struct {
		name string
		any  bool
		v    any
	}{{`,"locks":`, len(h.Locks) > 0, h.Locks}, {`,"moves":`, len(h.Moves) > 0, h.Moves}, {`,"cleanup":`, len(h.Cleanup) > 0, h.Cleanup}} {
		if !part.any {
			continue
		}
		b = append(b, part.name...)
		if b, err = appendJSON(b, part.v); err != nil {
			return nil, err
		}
	}
	if h.Used != nil {
		b = appendUsed(append(b, `,"used":`...), h.Used)
	}
	if h.AcceptReusedPaths != "" {
		b = append(b, `,"acceptReusedPaths":`...)
		b = appendText(b, h.AcceptReusedPaths)
	}
	if h.Writer != "" {
		b = append(b, `,"writer":`...)
		b = appendText(b, h.Writer)
	}
	return append(b, '}'), nil
}

func appendUsed(b []byte, u *commitstep.UsedPaths) []byte {
	comma := byte('{')
	for _, part := range [...]struct {
		name string
		list commitstep.PathDigests
	}{{`"sources":"`, u.Sources}, {`"above":"`, u.Above}, {`"cleanups":"`, u.Cleanups}} {
		if len(part.list) > 0 {
			b = append(append(b, comma), part.name...)
			b, comma = append(part.list.Append(b), '"'), ','
		}
	}
	if comma == '{' {
		b = append(b, comma)
	}
	return append(b, '}')
}

// appendTail writes the rest of a history record, without its opening brace.
func appendTail(b []byte, t historyTail) ([]byte, error) {
	var err error
	b = append(b, `"state":`...)
	b = appendText(b, string(t.State))
	b = append(b, `,"ended":`...)
	if b, err = appendTime(b, t.Ended); err != nil {
		return nil, err
	}
	b = append(b, `,"epoch":`...)
	b = strconv.AppendUint(b, t.Epoch, 10)
	b = append(b, `,"notes":`...)
	if n := t.Notes; len(n.PartialVisible) > 0 || len(n.DeclaredPublished) > 0 {
		if b, err = appendJSON(b, n); err != nil {
			return nil, err
		}
	} else {
		at := len(b)
		b = appendCount(b, `,"already":`, n.Already)
		b = appendCount(b, `,"executed":`, n.Executed)
		b = appendCount(b, `,"recovers":`, n.Recovers)
		if n.Driver != "" {
			b = append(b, `,"driver":`...)
			b = appendText(b, n.Driver)
		}
		if len(b) == at {
			b = append(b, '{')
		}
		b[at] = '{'
		b = append(b, '}')
	}
	if t.Message != "" {
		b = append(b, `,"message":`...)
		b = appendText(b, t.Message)
	}
	if t.CleanupReport != "" {
		b = append(b, `,"cleanupReport":`...)
		b = appendText(b, t.CleanupReport)
	}
	return append(b, '}'), nil
}

// encodeSums returns the payload, which every commit writes, with room for an
// envelope before it.
func encodeSums(all *sums) []byte {
	b := make([]byte, commitstep.EnvelopeSize, commitstep.EnvelopeSize+len(all)*48+2)
	b = append(b, '[')
	for i := range all.stored() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"n":`...)
		b = strconv.AppendUint(b, all[i].Count, 10)
		b = append(b, `,"h":"`...)
		b = strconv.AppendUint(b, all[i].Hash, 10)
		b = append(b, `"}`...)
	}
	b = append(b, ']')
	return b
}

func appendInt(b []byte, name string, n int) []byte {
	return strconv.AppendInt(append(b, name...), int64(n), 10)
}

func appendCount(b []byte, name string, n int) []byte {
	if n == 0 {
		return b
	}
	return appendInt(b, name, n)
}

func appendUUID(b []byte, id uuid.UUID) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i, c := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			b = append(b, '-')
		}
		b = append(b, hex[c>>4], hex[c&15])
	}
	return append(b, '"')
}

func appendTime(b []byte, t time.Time) ([]byte, error) {
	if y := t.Year(); y < 0 || y > 9999 {
		return nil, fmt.Errorf("boltstore: the time %s cannot be stored", t)
	}
	b = append(b, '"')
	b = t.AppendFormat(b, time.RFC3339Nano)
	return append(b, '"'), nil
}

func appendJSON(b []byte, v any) ([]byte, error) {
	j, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("boltstore: encode: %w", err)
	}
	return append(b, j...), nil
}
