package pgstore

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

func sealHeader(h *commitstep.Header) ([]byte, error) {
	raw, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("pgstore: header of sequence %s: %w", h.ID, err)
	}
	return commitstep.Seal(commitstep.RecordHeader, headerKey(h.ID), raw), nil
}

// openHeader reads a header. Its own words about id and dataset are held
// against the row's.
func openHeader(id uuid.UUID, key commitstep.Key, record []byte) (commitstep.Header, error) {
	var h commitstep.Header
	payload, err := commitstep.Open(commitstep.RecordHeader, headerKey(id), record)
	if err != nil {
		return h, err
	}
	if err := json.Unmarshal(payload, &h); err != nil {
		return h, damaged("the header cannot be decoded: %v", err)
	}
	if h.ID != id || h.Key != key {
		return h, damaged("the header of sequence %s of dataset %s is kept with sequence %s of %s", h.ID, h.Key, id, key)
	}
	for i := range h.Cleanup {
		h.Cleanup[i].Index = h.Steps + i
	}
	return h, nil
}

// openPage reads the steps of page n of a sequence.
func openPage(id uuid.UUID, n, first int, record []byte) ([]commitstep.Step, error) {
	payload, err := commitstep.Open(commitstep.RecordPage, pageKey(id, n), record)
	if err != nil {
		return nil, err
	}
	var steps []commitstep.Step
	if err := json.Unmarshal(payload, &steps); err != nil {
		return nil, damaged("the steps cannot be decoded: %v", err)
	}
	for i := range steps {
		steps[i].Index = first + i
	}
	return steps, nil
}

// appendSteps writes steps as a JSON array. Parameters and evidence are JSON
// already; they are checked, not decoded.
func appendSteps(b []byte, steps []commitstep.Step) ([]byte, error) {
	b = append(b, '[')
	for i := range steps {
		s := &steps[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"stage":`...)
		b = strconv.AppendInt(b, int64(s.Stage), 10)
		b = append(b, `,"kind":`...)
		b = appendText(b, s.Kind)
		b = append(b, `,"version":`...)
		b = strconv.AppendInt(b, int64(s.Version), 10)
		if s.Class != "" {
			b = append(b, `,"class":`...)
			b = appendText(b, string(s.Class))
		}
		for _, part := range [...]struct {
			name string
			raw  json.RawMessage
		}{{`,"params":`, s.Params}, {`,"evidence":`, s.Evidence}} {
			if len(part.raw) == 0 {
				continue
			}
			if !json.Valid(part.raw) {
				return nil, fmt.Errorf("pgstore: step %d (%s): its parameters or evidence are not valid JSON", s.Index, s.Kind)
			}
			b = append(append(b, part.name...), part.raw...)
		}
		b = append(b, '}')
	}
	return append(b, ']'), nil
}

// appendText writes s as a JSON string; names are plain most of the time.
func appendText(b []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= 0x7f {
			q, err := json.Marshal(s)
			if err != nil { // strings always marshal
				return append(b, `""`...)
			}
			return append(b, q...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
